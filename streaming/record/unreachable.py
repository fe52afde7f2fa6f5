"""Which brokers can't be reached, why, and when each is tried again."""

import ssl
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0


_OTHER_HOST = (62, 64)
"""The codes with which a certificate is refused that names other hosts: X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


def why_not(error: Exception) -> str:
    """Why there is no connection, and what to look at if TLS fails."""
    if isinstance(error, ssl.SSLCertVerificationError):
        look = (
            "the URL needs a host that the certificate names"
            if error.verify_code in _OTHER_HOST
            else "--tls-ca names the file with the authority that signed it"
        )
        return f"CERTIFICATE_VERIFY_FAILED: {error.verify_message} ({look})"
    if isinstance(error, ssl.SSLError):
        return (
            f"{error.reason or error} (does it speak TLS? If not, the URL begins with pulsar:// or http://)"
        )
    return str(error)


@dataclass
class _Failure:
    why: str
    pause: float
    due: float
    is_tried: bool = False


class Unreachable:
    """Brokers that could not be reached, by name. The time between two tries doubles. Threads may share it."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}
        self._lock = threading.Lock()

    def why(self, broker: str) -> str | None:
        """Why a broker is not to be tried now. None: try it, and say how it went with `failed` or `reached`; others wait until then."""
        with self._lock:
            found, now = self._failures.get(broker), time.monotonic()
            if found is None:
                return None
            if now < found.due:
                return found.why
            found.due, found.is_tried = now + found.pause, True
            return None

    def ordered(self, brokers: Iterable[str]) -> list[str]:
        """The brokers in their order, but the ones that could not be reached last."""
        with self._lock:
            return sorted(brokers, key=lambda each: each in self._failures)

    def failed(self, broker: str, why: str) -> None:
        """A broker could not be reached."""
        with self._lock:
            before, pause = self._failures.get(broker), FIRST_PAUSE_SECONDS
            if before is not None:
                # Several threads may fail at the same time: that is one try.
                pause = min(before.pause * 2, LONGEST_PAUSE_SECONDS) if before.is_tried else before.pause
            self._failures[broker] = _Failure(why, pause, time.monotonic() + pause)

    def reached(self, broker: str) -> None:
        """A broker was reached."""
        with self._lock:
            self._failures.pop(broker, None)
