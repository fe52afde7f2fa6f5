"""The keys of ingress records in Kafka, and the topics that they name."""

import re

NOT_UTF8 = "key-not-utf8:"
"""What the topic of a record begins with if its key is not UTF-8. The key follows in hexadecimal. No topic is named so, and
no two keys give the same text."""


def topic_of(key: bytes | None) -> str | None:
    """The topic that a Kafka key names; None: there is no key, or it is empty."""
    if not key:
        return None
    try:
        topic = key.decode()
    except UnicodeDecodeError:
        return NOT_UTF8 + key.hex()
    return NOT_UTF8 + key.hex() if topic.startswith(NOT_UTF8) else topic


def key_of(topic: str | None) -> bytes | None:
    """The Kafka key that names a topic: the inverse of `topic_of`."""
    if topic is None:
        return None
    found = re.fullmatch(f"{NOT_UTF8}((?:[0-9a-f]{{2}})+)", topic)
    return topic.encode() if found is None else bytes.fromhex(found[1])
