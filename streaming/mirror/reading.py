"""A topic's new entries as SENDs: those that a reader gets, or ones that stand for those that stats count."""

from bisect import bisect_left
from collections.abc import Generator, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from schemas.commands import Refused, Send
from streaming.broker.config import ServiceConfiguration
from streaming.broker.topic.publish_requests import too_many_messages
from streaming.mirror.last import PRODUCER
from streaming.mirror.observation import Observation, ledgers_of
from streaming.mirror.progress import SourcePosition
from streaming.mirror.source import Look
from streaming.protocol.codec import entry
from streaming.quality.gate import judge_each
from streaming.record.stored import Stored, send_of
from streaming.traces.trace import Payloads

FIRST_LEDGER = 1
"""The lowest id of a ledger here, where 0 stands for non-persistent topics. A cluster's very first ledger may have the id 0."""

MOST_ENTRIES = 50_000_000
"""Each entry is a record, whether somebody has read it or not. With more than so many at once, a topic is left out."""
LARGEST_ENTRY = 1 << 27


class TimedSend(NamedTuple):
    """An entry's command, when it was published (ms), and where it is on the cluster. `odd`: why the command is of another entry, which
    stands for this one; None: it is not."""

    time: int
    position: SourcePosition
    command: dict[str, Any]
    odd: str | None = None


_TERMINATED = "Terminated"


def read(
    stored: Iterator[Stored], look: Look, after: SourcePosition, payloads: Payloads
) -> Generator[TimedSend]:
    """The commands of entries that a reader gets, the first one after `after`. It began to read after the `look`. Readers get no
    markers, and nothing of aborted transactions: an empty entry stands for each. The last ones of a ledger count when it is closed and
    the cluster says that no transaction is open. One of the same size stands for an entry whose command the twin refuses, as
    it would refuse all that come after it, too. Raises `ValueError` for more than can be."""
    ledgers = {id_: entries for id_, (entries, _) in ledgers_of(look.internal).items()}
    ids = [*ledgers]

    def passed_over(to: SourcePosition, time: int) -> Iterator[TimedSend]:
        """What stands for the entries between `after` and `to`."""
        closed = ids[bisect_left(ids, after[0]) : bisect_left(ids, to[0])]
        for id_, end in [*((each, ledgers[each]) for each in closed), to]:
            begin = after[1] + 1 if id_ == after[0] else 0
            if end - begin > MOST_ENTRIES:
                raise ValueError(f"{end - begin:,} entries that no reader gets: more than {MOST_ENTRIES:,}")
            for number in range(begin, end):
                yield _timed(Stored(id_, number, _metadata(time), b"", time), payloads)

    for each in stored:
        yield from passed_over((each.ledger, each.entry), min(each.time, look.time))
        if (why := each.unreadable) is None:
            sent = _timed(each, payloads)
            why = _refused(sent.command, each.payload)
        yield sent if why is None else _in_place_of(each, look.time, why)
        after = each.ledger, each.entry
    # What comes after the beginning of an open transaction is read when that ends. quirk: the broker may not say where the end of a
    # terminated topic is, and then a reader gets nothing, readable or not.
    readable = look.stats.get("ongoingTxnCount") == 0 and look.internal.get("state") != _TERMINATED
    if ids and after < (ids[-1], 0) and readable:
        yield from passed_over((ids[-1], 0), look.time)


_CONFIG = ServiceConfiguration()


def _refused(command: dict[str, Any], payload: bytes) -> str | None:
    """Why the twin refuses an entry's command. Clusters take any metadata that they can parse. No payload for which
    a line has room breaks a rule."""
    (judged,) = judge_each([None], [msgspec.json.encode({**command, "payload_bytes": b""})])
    if isinstance(judged, Refused):
        return judged.cause
    return too_many_messages(_CONFIG, judged.metadata, payload) if isinstance(judged, Send) else None


def _in_place_of(stored: Stored, now: int, why: str) -> TimedSend:
    time = min(stored.time, now)
    metadata, overhead = _stand_in(time, stored.entry, 1)
    size = len(entry(stored.metadata, stored.payload)) if stored.size is None else stored.size
    payload = bytes(max(size - overhead, 0))
    sent = _timed(Stored(stored.ledger, stored.entry, metadata, payload, time), "drop")
    return sent._replace(odd=f"no log can have entry {stored.ledger}:{stored.entry}: {why}")


class Known(NamedTuple):
    """What is known of a topic as it was at `time` (ms): the bytes of ledgers, and how many messages its broker had counted (None: unknown)."""

    time: int
    sizes: dict[int, int]
    messages: int | None = None


def known_of(before: Look) -> Known:
    """What a look of this process tells."""
    sizes = {id_: size for id_, (_, size) in ledgers_of(before.internal).items()}
    return Known(before.time, sizes, before.stats.get("msgInCounter", 0))


def known_by(before: Observation, look: Look, after: SourcePosition) -> Known:
    """What the last MIRROR of a log tells that another process wrote: the bytes of the ledger that was open, if the log has the entries up to then and
    no more, and no ledger was deleted since."""
    seen, ledgers = before.record, ledgers_of(look.internal)
    if after != seen.read_to or seen.first_ledger != min(ledgers, default=-1):
        return Known(before.time, {})
    others = sum(size for id_, (_, size) in ledgers.items() if id_ < seen.ledger_id)
    return Known(before.time, {seen.ledger_id: seen.size - others})


def stand_ins(look: Look, after: SourcePosition, before: Known | None) -> Generator[TimedSend]:
    """Entries that stand for those after `after`: as many as there are, as large as they are on average, spread over the time in which they
    came. `before`: None if nobody has looked before."""
    former = {} if before is None else before.sizes
    news = [
        (id_, begin, entries, size - former[id_] if id_ in former else size * (entries - begin) // entries)
        for id_, (entries, size) in ledgers_of(look.internal).items()
        if entries and (id_, entries - 1) > after
        for begin in [after[1] + 1 if id_ == after[0] else 0]
    ]
    total, done = sum(end - begin for _, begin, end, _ in news), 0
    if total > MOST_ENTRIES or any(size // (end - begin) > LARGEST_ENTRY for _, begin, end, size in news):
        raise ValueError(f"{total:,} new entries: more than {MOST_ENTRIES:,}, or larger than entries can be")
    messages = total
    if before is not None and before.messages is not None:
        messages = max(look.stats.get("msgInCounter", 0) - before.messages, total)
    times = _times(look, None if before is None else before.time)
    for id_, begin, end, size in news:
        written, (first, last) = 0, times[id_]
        for number in range(begin, end):
            count = messages * (done + 1) // total - messages * done // total
            done += 1
            time = first + (last - first) * (number + 1 - begin) // (end - begin)
            room = size * (number + 1 - begin) // (end - begin) - written
            metadata, overhead = _stand_in(time, number, count)
            if 0 < room - overhead < count:  # which the broker does not take
                metadata, overhead = _stand_in(time, number, room - overhead)
            payload = max(room - overhead, 0)
            written += overhead + payload
            yield _timed(Stored(id_, number, metadata, bytes(payload), time), "drop")


def _times(look: Look, since: int | None) -> dict[int, tuple[int, int]]:
    """Between which times (ms) the entries of each ledger came that were not there at `since`. A ledger begins when the one before ends. When the oldest
    one began is not known; then all its entries have the time of its end."""
    *closed, current = ledgers_of(look.internal) or [-1]
    created = look.internal.get("lastLedgerCreatedTimestamp")
    last = min(look.closed.get(current, look.time), look.time)
    opened = last if created is None else min(int(datetime.fromisoformat(created).timestamp() * 1000), last)
    ends, end = dict[int, int](), opened
    for id_ in reversed(closed):
        ends[id_] = end = min(look.closed.get(id_, end), end)
    found, at_least = dict[int, tuple[int, int]](), since or 0
    for id_ in closed:
        end = max(ends[id_], at_least)
        found[id_] = end if since is None else since, end
        since = at_least = end
    begin = since if created is None and since is not None else max(opened, at_least)
    found[current] = begin, max(last, begin)
    return found


def _stand_in(time: int, number: int, messages: int) -> tuple[dict[str, Any], int]:
    """The metadata of an entry of so many messages, and the bytes of the entry without its payload."""
    metadata = _metadata(time, number)
    if messages > 1:
        metadata["num_messages_in_batch"] = messages
    return metadata, len(entry(metadata, b""))


def _metadata(time: int, sequence_id: int = 0) -> dict[str, Any]:
    return {"producer_name": PRODUCER, "sequence_id": sequence_id, "publish_time": time}


def _timed(stored: Stored, payloads: Payloads) -> TimedSend:
    position = {"ledgerId": stored.ledger, "entryId": stored.entry}
    command = {**send_of(stored, payloads), "producer_id": 0, "message_id": position}
    return TimedSend(stored.time, (stored.ledger, stored.entry), command)
