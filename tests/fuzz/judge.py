"""The judge of a log: nothing stops the fold, nothing costs more than its bound, nothing passes in silence.

The cost of a record is compared with that of a *plain* record, a short message without consumers, measured in the same
process: at most `ROOM` times as much for each unit. A record's units are 1, one per 64 bytes of it, one per row that it puts
out, and one per 64 bytes of the log before it, since it may have to go through all that the state holds.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow.compute as pc

from schemas.commands import Ack, Admin, CloseProducer, Publish, Refused, Send, Tick, to_json
from schemas.effects import KINDS as KINDS_OF_ROWS
from sinks.rows import concat
from streaming.broker.context import ROWS
from streaming.fold.live import LiveFold
from streaming.quality.gate import judge
from streaming.quality.inputs import KINDS
from streaming.quality.outputs import output_rules
from tests.fuzz.cases import NEIGHBOUR, Load, Log, Sent
from tests.fuzz.folding import UNIT, Cost, Memory, Run, plain, records_of
from tests.fuzz.limits import Finding, limited
from tests.fuzz.sinks import written

ROOM = 5
"""How many times the calls of a plain record a unit may cost, and twice that in time, which other work affects."""
SPARE_CALLS, SPARE_SECONDS, SPARE_BYTES = 20_000, 0.2, 32 << 20
"""What any record may cost: noise, what is loaded at first use, tables without columns."""
BYTES_PER_UNIT = 4096
"""Memory that a unit may take: a row as a Python object and in an Arrow table, or the parts of a command."""
BYTES_PER_HELD = 256
"""Memory that a unit of the log before may take: the parts of the state that a record touches, decoded."""
SPARE_ROWS, ROWS_PER_UNIT = 64, 8
"""Rows that any record may put out, and rows for each unit of it and of the log before it, besides one per subscription."""
LOOKS = 2
"""A unit is also so many subscriptions of a topic, for each minute in which something happened there, since the checks and the stats
go through them, and for each ledger that closed, which caught-up cursors then leave."""
LIVE = 3
"""One log in so many is folded as a server does, too."""
SINKS = 10
"""The sinks take as long as the rest: they get the rows of one log in so many."""
STATE_PER_BYTE = 32
"""The bytes of state that a byte of the log may leave."""
GROWTH = 2.0
"""How many times a unit may cost if the load is four times as large."""


# -- a log ------------------------------------------------------------------------------------------------------------

WINDOW, TAIL = 50, 8
"""Records are judged in windows, the last ones one by one."""


def windows(log: Log, tail: int) -> list[Log]:
    first = max(0, len(log) - tail)
    return [log[start : min(start + WINDOW, first)] for start in range(0, first, WINDOW)] + [
        [each] for each in log[first:]
    ]


class Verdict(NamedTuple):
    """What a log that is not a finding cost at most: the largest part of a bound, the kind of record that cost it, and
    the largest rise of the memory (bytes). `kinds` counts the last records by kind, and refused ones by rule."""

    ratio: float
    kind: str
    memory: int = 0
    kinds: Mapping[str, int] = {}


def judge_log(log: Log, tail: int = TAIL) -> Verdict:
    """Raises `Finding`. The last `tail` records are judged one by one."""
    return patiently(lambda: _judged(log, tail))


def patiently(judge_: Callable[[], Verdict]) -> Verdict:
    """Too much time is a finding only the third time: the machine has other work."""
    for _ in range(2):
        try:
            return judge_()
        except Finding as finding:
            if not finding.name.startswith("seconds"):
                raise
    return judge_()


def _judged(log: Log, tail: int) -> Verdict:
    plain()
    with limited(5) as begin:
        parts, worst, memory = Run(), Verdict(0, ""), 0
        for part in windows(log, tail):
            begin(f"{kind_of(part[-1])}, record {parts.offset + len(part)} of {len(log)}")
            before = log[: parts.offset]
            ratio, rise = judge_cost(part, parts.batch(part), before)
            worst, memory = max(worst, Verdict(ratio, kind_of(part[-1]))), max(memory, rise)
        begin("the whole")
        whole = Run()
        whole.batch(log)
        judge_chunks(whole)
        judge_rows(whole, parts)
        judge_state(log, whole)
        judge_answers(log, whole)
        judge_neighbour(log, whole)
        if len(log) % LIVE == 0:
            judge_live(log, whole)
        if len(log) % SINKS == 0:
            judge_sinks(whole)
    return worst._replace(memory=memory, kinds=Counter(map(kind_of, log[-TAIL:-2])))


def judge_cost(part: Log, cost: Cost, before: Log) -> tuple[float, int]:
    """The largest part of a bound, and the rise of the memory."""
    held = sum(len(each.value) for each in before) // UNIT
    subscriptions = subscriptions_of([*before, *part])
    own = cost.units - cost.output
    units = cost.units + len(part) * held + cost.looks * subscriptions // LOOKS
    found = 0.0
    for name, value, most in (
        ("calls", cost.calls, SPARE_CALLS + ROOM * plain().calls * units),
        ("seconds", cost.seconds, SPARE_SECONDS + 2 * ROOM * plain().seconds * units),
        ("bytes of memory", cost.memory, SPARE_BYTES + BYTES_PER_UNIT * cost.units + BYTES_PER_HELD * held),
        ("rows", cost.rows, len(part) * (SPARE_ROWS + (ROWS_PER_UNIT + subscriptions) * (held + own))),
    ):
        if value > most:
            text = f"{describe(part)}: {value:,.2f} for {units:,} units, at most {most:,.2f}"
            raise Finding(f"{name} of {kind_of(part[-1])}", text)
        found = max(found, value / most)
    return found, cost.memory


def subscriptions_of(log: Log) -> int:
    """How many subscriptions a log makes, at most."""
    return sum(b"SUBSCRIBE" in each.value for each in log)


def judge_rows(whole: Run, parts: Run) -> None:
    """The same rows and the same state, however the log is cut, and no row that the suites call a mistake of Magnetar's."""
    one, many = concat(whole.rows), concat(parts.rows)
    for rule, count in output_rules().broken(one).items():
        raise Finding(f"rows break {rule}", f"{count} rows")
    for kind in sorted(one.keys() | many.keys()):
        if kind not in one or kind not in many or not one[kind].equals(many[kind]):
            raise Finding("cuts", f"the rows of {kind} depend on the cuts")
    assert whole.state is not None
    assert parts.state is not None
    if whole.state.broker != parts.state.broker:
        raise Finding("cuts", "the state depends on the cuts")


def judge_chunks(run: Run) -> None:
    """Rows are handed on before there are too many."""
    if (most := max((sum(map(len, rows.values())) for rows in run.rows), default=0)) > ROWS:
        raise Finding("chunks", f"{most:,} rows at once, at most {ROWS:,}")


def judge_live(log: Log, whole: Run) -> None:
    """A server's fold, which takes SENDs together, has the same rows and the same state."""
    fold = LiveFold(0, Memory(), None)
    rows = Counter(KINDS_OF_ROWS[type(row.effect)] for row in fold.answer(records_of(log, 0)))
    if rows != (expected := {kind: len(table) for kind, table in concat(whole.rows).items()}):
        raise Finding("live", f"a server's fold has {rows}, and not {expected}")
    assert whole.state is not None
    if fold.state().broker != whole.state.broker:
        raise Finding("live", "the state of a server's fold is another")


def judge_state(log: Log, run: Run) -> None:
    assert run.state is not None
    most = 16_384 + STATE_PER_BYTE * sum(len(each.value) + len((each.topic or "").encode()) for each in log)
    if len(run.state.broker) > most:
        raise Finding("state", f"{len(run.state.broker):,} bytes of state, at most {most:,}")


def judge_answers(log: Log, run: Run) -> None:
    """A record that asks for an answer, and one that is refused, leaves a row."""
    answered: set[int] = set()
    rows = concat(run.rows)
    for table in rows.values():
        answered.update(table["offset"].to_pylist())
    withheld = any(b"DelayWrites" in each.value for each in log)
    for offset, (sent, command) in enumerate(
        zip(log, judge([each.topic for each in log], [each.value for each in log]), strict=True)
    ):
        if offset in answered:
            continue
        match command:
            case Refused():
                what = "refused"
            case Publish() | Send() | CloseProducer() if withheld:
                continue
            case Send() if {"CLOSE_PRODUCER", "TOPIC_EVENT", "CLOSE_CONNECTION"} & rows.keys():
                continue  # its producer was closed, and the client does not know yet
            case Ack():
                continue  # for an unknown consumer, it is ignored
            case Publish() | Send() | Admin():
                what = "accepted"
            case _ if getattr(command, "request_id", None) is not None:
                what = "accepted"
            case _:
                continue
        raise Finding("silence", f"{describe([sent])} was {what} and left no row")


def judge_neighbour(log: Log, run: Run) -> None:
    """What the neighbour gets does not depend on records of other topics."""
    last = rows_of(NEIGHBOUR, run)
    if not any(row["offset"] == len(log) - 1 for row in last) and log[-1].topic == NEIGHBOUR:
        raise Finding("neighbour", "its last message was not answered")
    if any(b"maxUnackedMessagesPerBroker" in each.value for each in log):
        return
    alone = Run()
    alone.batch([each if of_all(each) else each._replace(topic=None, value=TICK) for each in log])
    if rows_of(NEIGHBOUR, alone) != last:
        raise Finding("neighbour", f"what it gets depends on records of other topics: {last[-3:]}")


def judge_sinks(run: Run) -> None:
    """The sinks take the rows, and the tables have them."""
    rows = concat(run.rows)
    if (found := written(rows)) != (own := {kind: len(table) for kind, table in rows.items()}):
        raise Finding("sinks", f"the tables have {found} rows of {own}")


TICK = to_json(Tick())
FOR_ALL = ("BROKER_CONFIG", "RUN_CHECK", "RESTART", "CONNECTION_LOST", "ADMIN")


def of_all(sent: Sent) -> bool:
    return sent.topic in (None, NEIGHBOUR) or kind_of(sent) in FOR_ALL or sent.timestamp > 10**14


def rows_of(topic: str, run: Run) -> list[dict[str, Any]]:
    """The rows of a topic, in order. Their ordinals are left out, since they count the rows of other topics, too."""
    found = [
        row | {"kind": kind}
        for kind, table in concat(run.rows).items()
        if "topic" in table.column_names
        for row in table.filter(pc.equal(table["topic"], topic)).to_pylist()
    ]
    found.sort(key=itemgetter("offset", "ordinal"))
    return [row | {"ordinal": None} for row in found]


def kind_of(sent: Sent) -> str:
    (command,) = judge([sent.topic], [sent.value])
    return command.rule if isinstance(command, Refused) else KINDS[type(command)]


def describe(part: Log) -> str:
    last = part[-1]
    text = f"{kind_of(last)} of {len(last.value):,} bytes on {last.topic!r:.60}: {last.value[:120]!r}"
    return text if len(part) == 1 else f"{len(part)} records, the last {text}"


# -- a load -----------------------------------------------------------------------------------------------------------


def judge_load(load: Load, count: int = 150) -> Verdict:
    """A load that is four times as large costs about as much per unit. Raises `Finding`."""
    return patiently(lambda: _judged_load(load, count))


def _judged_load(load: Load, count: int) -> Verdict:
    plain()
    with limited(30):
        costs = []
        for log in (load.log(count), load.log(4 * count)):
            cost = Run().batch(log)
            held = sum(len(each.value) for each in log) // UNIT
            looks = cost.looks * subscriptions_of(log) // LOOKS
            costs.append(cost._replace(units=cost.units + held * (1 + len(load.after)) + looks))
    small, large = costs
    more = large.units / small.units
    calls, seconds = large.calls / small.calls / more, large.seconds / max(small.seconds, 0.01) / more
    text = (
        f"a unit costs {calls:.1f} × the calls and {seconds:.1f} × the time with four times as many {load.grows[0]}: "
        f"{small}, {large}, {load}"
    )
    if calls > GROWTH:
        raise Finding(f"growth of {load.grows[0]}", text)
    if seconds > 1.5 * GROWTH and large.seconds > 2 * SPARE_SECONDS:
        raise Finding(f"seconds in the growth of {load.grows[0]}", text)
    return Verdict(calls / GROWTH, f"load of {load.grows[0]}", large.memory, {load.grows[0]: 1})
