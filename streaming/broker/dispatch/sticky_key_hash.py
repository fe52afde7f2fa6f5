"""The sticky key of an entry, which decides its consumer on Key_Shared (docs/rules/key-shared.md §1)."""

import base64

from schemas.commands import MessageMetadata
from streaming.broker.dispatch.murmur3 import murmur3_31

NONE_KEY = b"NONE_KEY"
"""The key of an entry whose base64 key can't be decoded, and of one without a key if those do not spread."""


def sticky_key(metadata: MessageMetadata, *, spreads_keyless: bool = True) -> bytes:
    """The ordering key, else the partition key, else one made of producer name and sequence id, so that keyless entries
    spread (keySharedSpreadsKeyless)."""
    if metadata.ordering_key is not None:
        return metadata.ordering_key
    key = metadata.partition_key
    if key is None and not spreads_keyless:
        return NONE_KEY
    if key is None:
        return f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    if not metadata.partition_key_b64_encoded:
        return key.encode()
    try:
        return base64.b64decode(key + "=" * (-len(key) % 4), validate=True)
    except ValueError:
        return NONE_KEY


def hash_of_key(key: str) -> int:
    """`sticky_key_hash` of an entry whose metadata has this partition key, and nothing else that counts."""
    return murmur3_31(key.encode())


def sticky_key_hash(metadata: MessageMetadata, *, spreads_keyless: bool = True) -> int:
    """A hash in [0, 2^31). A selector maps it to a slot."""
    return murmur3_31(sticky_key(metadata, spreads_keyless=spreads_keyless))
