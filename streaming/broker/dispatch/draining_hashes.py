"""Hashes that move to another consumer once their unacked entries are gone (mirrors `DrainingHashesTracker`; rules:
dispatch_key_shared.md §5)."""

import msgspec

from streaming.broker.subscription.consumer import Handle


class DrainingHash(msgspec.Struct, array_like=True):
    """`owner` = the consumer that has the unacked entries, `entries` of them; `blocked` = how often one had to wait."""

    owner: Handle
    entries: int = 0
    blocked: int = 0


class DrainingHashes(msgspec.Struct, array_like=True):
    """By hash. Counts are in entries: acks of some messages of a batch don't count down."""

    hashes: dict[int, DrainingHash] = {}

    def add(self, owner: Handle, hash_: int) -> None:
        """An unacked entry of `owner`, which lost the hash."""
        self.hashes.setdefault(hash_, DrainingHash(owner)).entries += 1

    def reduce(self, owner: Handle, hash_: int) -> bool:
        """An entry of `owner` isn't unacked any more. True: it was the last one, and somebody waits for the hash."""
        draining = self.hashes.get(hash_)
        if draining is None or draining.owner != owner:
            return False
        draining.entries -= 1
        if draining.entries > 0:
            return False
        del self.hashes[hash_]
        return draining.blocked > 0

    def blocks(self, consumer: Handle, hash_: int) -> bool:
        """Must an entry for `consumer` wait? To the owner the hash has come back: it doesn't drain any more."""
        draining = self.hashes.get(hash_)
        if draining is None:
            return False
        if draining.owner == consumer:
            del self.hashes[hash_]
            return False
        draining.blocked += 1
        return True

    def forget(self, owner: Handle) -> None:
        """The consumer left."""
        for hash_ in [hash_ for hash_, draining in self.hashes.items() if draining.owner == owner]:
            del self.hashes[hash_]
