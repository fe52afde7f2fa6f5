"""Hashes that move to another consumer once no unacked entries of theirs remain (mirrors `DrainingHashesTracker`; rules:
docs/rules/key-shared.md §7)."""

from collections.abc import Iterable

import msgspec

from streaming.broker.subscription.consumer import Handle


class DrainingHash(msgspec.Struct, array_like=True):
    """`owner` = the consumer with the unacked entries, `entries` = how many, `blocked` = how often an entry had to wait."""

    owner: Handle
    entries: int = 0
    blocked: int = 0


class DrainingHashes(msgspec.Struct, array_like=True):
    """The draining hashes. They count entries, so an ack of part of a batch changes nothing."""

    hashes: dict[int, DrainingHash] = {}

    def add(self, owner: Handle, hash_: int, entries: int = 1) -> None:
        """Count unacked entries of `owner`, which lost the hash."""
        self.hashes.setdefault(hash_, DrainingHash(owner)).entries += entries

    def reduce(self, owner: Handle, hash_: int, entries: int = 1) -> bool:
        """Uncount entries of `owner`. Returns True if they were the last ones and an entry waits for the hash."""
        draining = self.hashes.get(hash_)
        if draining is None or draining.owner != owner:
            return False
        draining.entries -= entries
        if draining.entries > 0:
            return False
        del self.hashes[hash_]
        return draining.blocked > 0

    def blocks(self, consumer: Handle, hash_: int) -> bool:
        """Whether an entry for `consumer` must wait. If `consumer` is the owner, it got the hash back: stop draining."""
        draining = self.hashes.get(hash_)
        if draining is None:
            return False
        if draining.owner == consumer:
            del self.hashes[hash_]
            return False
        draining.blocked += 1
        return True

    def forget(self, owner: Handle, hashes: Iterable[int]) -> None:
        """Forget the hashes of a consumer that leaves. `hashes`: those of its unacked entries."""
        for hash_ in hashes:
            if (draining := self.hashes.get(hash_)) is not None and draining.owner == owner:
                del self.hashes[hash_]
