"""Chunks that no consumer has and nobody can take, and when they come again (docs/rules/shared.md §12).

A Shared subscription deals all chunks of a message to one consumer, its owner: the one that got the first chunk. There are two ways
to lose the others. If the owner leaves, they are still dealt to it, as long as its permits last, and nobody gets them. If nobody is
the owner, because the last chunk has been dealt or the topic was unloaded, they wait until somebody gets the first one again.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from schemas.printable import counted
from streaming.broker.dispatch.verdict import ChunksCome, Verdict, lost_chunks, lost_entries, stuck_chunks
from streaming.broker.persistent.cleanup.backlog_analysis import unacked_positions
from streaming.broker.position import Position
from streaming.broker.subscription.context import SubscriptionContext


class _Chunk(NamedTuple):
    position: Position
    uuid: str
    chunk: int
    is_last: bool


class _Fate(NamedTuple):
    """What becomes of chunks. `dealt`: they were, to a consumer that had left. Otherwise they wait to be sent again."""

    dealt: bool
    comes: ChunksCome


def of_chunks(sub: SubscriptionContext, lost: Sequence[Position], stuck: Sequence[Position]) -> list[Verdict]:
    """What there is to say of entries that were dealt to consumers that had left, and of chunks that wait to be sent again and that
    nobody can take."""
    if not (lost or stuck):
        return []
    dispatcher = sub.subscription.dispatcher  # type: ignore[attr-defined]
    chunks = _chunks(sub) if dispatcher.deals_chunks(sub.ctx.config) else []
    known = {each.position for each in chunks}
    no_chunks = [each for each in lost if each not in known]
    others = (
        [lost_entries(f"{counted(len(no_chunks), 'entry')}, from {no_chunks[0]} on:")] if no_chunks else []
    )
    owners = dispatcher.owners_of_chunks(sub)
    if_all_leave, if_unloaded = _dealt(chunks, owners), _dealt(chunks, {})
    found: dict[_Fate, list[Position]] = {}
    for dealt, positions in ((True, [each for each in lost if each in known]), (False, stuck)):
        for each in positions:
            comes: ChunksCome = (
                "rejoin" if each in if_all_leave else "unload" if each in if_unloaded else "never"
            )
            found.setdefault(_Fate(dealt, comes), []).append(each)
    return others + [
        (lost_chunks if fate.dealt else stuck_chunks)(
            f"{counted(len(positions), 'entry')}, from {positions[0]} on:", fate.comes
        )
        for fate, positions in found.items()
    ]


def _chunks(sub: SubscriptionContext) -> list[_Chunk]:
    """The chunks in the backlog. Looks at so many entries at most as an analysis of it does."""
    most = sub.ctx.config.subscriptionBacklogScanMaxEntries
    positions = [position for position, _ in islice(unacked_positions(sub.ledger, sub.cursor), most)]
    return [
        _Chunk(position, uuid, chunk, chunk == (entry.metadata.num_chunks_from_msg or 1) - 1)
        for position, entry in zip(positions, sub.ctx.entries.get_all(sub.topic, positions), strict=True)
        if (uuid := entry.metadata.uuid) is not None
        for chunk in (entry.metadata.chunk_id or 0,)
    ]


def _dealt(chunks: list[_Chunk], owners: Mapping[str, int]) -> set[Position]:
    """The chunks that a consumer gets that is the first one to join, and has permits for all. `owners`: by message, the permits of a
    consumer that has left and owns it."""
    left, owned, dealt = dict(owners), set[str](), set[Position]()
    waiting, before = chunks, len(chunks) + 1
    while len(waiting) < before:  # what waits is dealt as soon as the first chunk is
        again, before = waiting, len(waiting)
        waiting = []
        for each in again:
            if each.uuid in left:
                if left[each.uuid] <= 0:
                    waiting.append(each)
                    continue
                left[each.uuid] -= 1
            elif each.uuid in owned or each.chunk == 0:
                owned.add(each.uuid)
                dealt.add(each.position)
            else:
                waiting.append(each)
                continue
            if each.is_last:
                owned.discard(each.uuid)
                left.pop(each.uuid, None)
    return dealt
