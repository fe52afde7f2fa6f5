"""Connections to Kafka, and in one sentence why there is none.

kafka-python retries until its time is up and then reports only that. The reasons are in what it logs.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from schemas.errors import MagnetarError
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.url import KafkaUrl

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer

T = TypeVar("T")

PATIENCE_MS = 8_000
"""How long to wait for a broker that accepts a connection, however busy it is. kafka-python's default is 30 s."""

PROBE_SECONDS = 2.0
"""How long to try an address at which nothing listens."""

_RETRY_SECONDS = 0.2


class KafkaUnreachable(MagnetarError, RuntimeError):
    """No Kafka answers at an address, or it refuses the topic. The text says which and why."""


def connect(client: Callable[..., T], url: KafkaUrl, config: KafkaConfig, **settings: Any) -> T:
    """A connected client of the given kafka-python class. Raises `KafkaUnreachable` if nothing answers in `PATIENCE_MS`."""
    from kafka.errors import KafkaError
    from kafka.net.compat import KafkaNetClient

    credentials = config.client()
    _probe(url)
    networks: list[KafkaNetClient] = []

    def network(**given: Any) -> KafkaNetClient:
        networks.append(KafkaNetClient(**given))
        return networks[-1]

    with _failures() as said:
        try:
            return client(
                bootstrap_servers=url.bootstrap.split(","),
                bootstrap_timeout_ms=PATIENCE_MS,
                kafka_client=network,
                **settings,
                **credentials,
            )
        except BaseException as error:
            # A constructor that fails leaves its thread behind, which tries for ever and logs that it fails.
            for each in networks:
                each.close()
            if not isinstance(error, KafkaError | ValueError):
                raise
            raise KafkaUnreachable(explain(said, url.bootstrap, config, PATIENCE_MS // 1000)) from error


def _probe(url: KafkaUrl) -> None:
    """Returns when one of the hosts accepts a connection. Raises `KafkaUnreachable` after `PROBE_SECONDS`."""
    deadline = time.monotonic() + PROBE_SECONDS
    while True:
        for address in url.bootstrap.split(","):
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
                return
            except (OSError, UnicodeError) as error:
                reason = str(getattr(error, "strerror", None) or error).lower()
        if time.monotonic() + _RETRY_SECONDS > deadline:
            raise KafkaUnreachable(
                f"no Kafka answered at {url.bootstrap} within {PROBE_SECONDS:.0f} s ({reason}): check the address, and that "
                "Kafka is up"
            )
        time.sleep(_RETRY_SECONDS)


@contextmanager
def administration(url: KafkaUrl, config: KafkaConfig = PLAIN) -> Iterator[KafkaAdminClient]:
    """An admin client of the Kafka at `url`, whose errors become `KafkaUnreachable`."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    admin = connect(KafkaAdminClient, url, config)
    try:
        yield admin
    except KafkaError as error:
        raise _failed(url, error) from error
    finally:
        admin.close()


@contextmanager
def consuming(url: KafkaUrl, config: KafkaConfig = PLAIN, **settings: Any) -> Iterator[KafkaConsumer]:
    """A consumer that commits no offsets, at the Kafka at `url`, whose errors become `KafkaUnreachable`.

    Assign it partitions, and seek in each. It skips nothing: if Kafka deletes records before they are read, that is an error, too.
    """
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    # By default, kafka-python goes on at the end.
    settings = {"enable_auto_commit": False, "auto_offset_reset": "none", **settings}
    consumer = connect(KafkaConsumer, url, config, **settings)
    try:
        yield consumer
    except KafkaError as error:
        raise _failed(url, error) from error
    finally:
        consumer.close()


def _failed(url: KafkaUrl, error: Exception) -> KafkaUnreachable:
    from kafka.errors import OffsetOutOfRangeError

    if isinstance(error, OffsetOutOfRangeError):
        from sinks.kafka import RecordsGone

        return KafkaUnreachable(f"Kafka at {url.bootstrap}, {RecordsGone(url.topic, error)}")
    why = str(error).rstrip(". ")
    return KafkaUnreachable(f"Kafka at {url.bootstrap}, topic {url.topic!r}: {why}. Fix this and try again")


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def _failures() -> Iterator[list[str]]:
    """Collects what kafka-python logs about failed connections while the context lasts."""
    collector, logger = _Collector(), logging.getLogger("kafka.net")
    logger.addHandler(collector)
    try:
        yield collector.said
    finally:
        logger.removeHandler(collector)


def explain(said: list[str], bootstrap: str, config: KafkaConfig, seconds: int) -> str:
    """Why there is no connection, in one sentence, from what `_failures` collected in `seconds`."""
    text = "\n".join(said)
    settings = config.client()
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = text.partition("certificate verify failed: ")[2].partition(" (_ssl")[0]
        return (
            f"Kafka at {bootstrap} cannot be trusted: {reason}. Check that ssl.truststore.location in {config.file} "
            "contains the authority of its certificate, and that the certificate is for this address"
        )
    if "[SSL" in text:
        reason = text.partition("[SSL")[2].partition("] ")[2].partition(" (_ssl")[0]
        return (
            f"TLS with Kafka at {bootstrap} failed: {reason}. Check security.protocol and ssl.keystore.location (the "
            f"client's own certificate, if the broker requires one) in {config.file}"
        )
    # The broker gives its reason as it closes the connection, and kafka-python discards it.
    hung_up = "socket disconnected" in text or "Invalid frame length" in text
    if ("sasl_mechanism" in settings and hung_up) or "SaslAuthenticationFailed" in text:
        return (
            f"Kafka at {bootstrap} did not let user {settings.get('sasl_plain_username')!r} in: check sasl.username, "
            f"sasl.password, sasl.mechanism and security.protocol in {config.file}"
        )
    if hung_up:
        return (
            f"Kafka at {bootstrap} hung up: it may require TLS or a password; give them in a file "
            "with --kafka-config"
        )
    return f"no Kafka answered at {bootstrap} within {seconds} s: check the address, and that Kafka is up"
