"""The address of a Kafka topic: ``kafka://HOST:PORT[,HOST:PORT…]/TOPIC``."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from schemas.errors import MagnetarError

_ADDRESS = re.compile(r"(\[[^\]@]+\]|[^:@\[\]]+):\d{1,5}")
_LAST_PORT = 65535
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaUrlError(MagnetarError, ValueError):
    """A text is not of the form ``kafka://HOST:PORT[,HOST:PORT…]/TOPIC``."""


class KafkaUrl(NamedTuple):
    """The place of a topic; `bootstrap` is ``host:port[,host:port…]``."""

    bootstrap: str
    topic: str

    @classmethod
    def parse(cls, url: str) -> KafkaUrl:
        """Raises `KafkaUrlError`."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise KafkaUrlError(f"{url!r}: {error}") from None
        topic = parts.path.strip("/")
        hosts = parts.netloc.lower().split(",")
        extra = "/" in topic or parts.query or parts.fragment
        if parts.scheme != "kafka" or not topic or extra or not all(map(_ADDRESS.fullmatch, hosts)):
            raise KafkaUrlError(f"{url!r}: expected kafka://HOST:PORT/TOPIC")
        pairs = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in hosts)]
        if wrong := [port for _, port in pairs if not 0 < port <= _LAST_PORT]:
            raise KafkaUrlError(f"{url!r}: {wrong[0]} is not a port (1 to {_LAST_PORT})")
        if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
            raise KafkaUrlError(
                f"{url!r}: a Kafka topic's name consists of ASCII letters, digits, '.', '_' and '-', 249 at most"
            )
        return cls(",".join(f"{host}:{port}" for host, port in pairs), topic)
