"""The address of a Kafka topic: ``kafka://HOST:PORT[,HOST:PORT…]/TOPIC``."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

_ADDRESS = re.compile(r"(\[[^\]@]+\]|[^:@\[\]]+):\d{1,5}")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaUrlError(ValueError):
    """A text is not of the form ``kafka://HOST:PORT[,HOST:PORT…]/TOPIC``."""


class KafkaUrl(NamedTuple):
    """The place of a topic; `bootstrap` is ``host:port[,host:port…]``."""

    bootstrap: str
    topic: str

    @classmethod
    def parse(cls, url: str) -> KafkaUrl:
        """Raises `KafkaUrlError`."""
        parts = urlsplit(url)
        topic = parts.path.strip("/")
        hosts = parts.netloc.split(",")
        if parts.scheme != "kafka" or not topic or "/" in topic or not all(map(_ADDRESS.fullmatch, hosts)):
            raise KafkaUrlError(f"{url!r}: expected kafka://HOST:PORT/TOPIC")
        if not _TOPIC_NAME.fullmatch(topic):
            raise KafkaUrlError(
                f"{url!r}: a Kafka topic's name consists of ASCII letters, digits, '.', '_' and '-', 249 at most"
            )
        return cls(parts.netloc, topic)
