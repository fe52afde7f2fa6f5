"""The smallest TTL, backlog quotas and retention that lose nothing of what a log's subscriptions consumed, and what smaller ones
lose and larger ones store.

*Consumed* is what a subscription acked. A TTL or a quota loses it if it takes the message before its ack; for retention, what was
delivered counts, and it is lost if its ledger is deleted before a delivery. Clients do what they did in the log. From the first
moment at which one would have seen something else, what they would have done is not known: such messages are counted as unknown.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.arguments import checked
from streaming.answers.advise.search import (
    POLICY_NAMES,
    UNITS,
    PartitionSearch,
    Point,
    PolicyName,
    Requirement,
    TopicSearch,
    search,
)
from streaming.answers.forked import forked
from streaming.answers.quarantined import in_all
from streaming.answers.whatif.side_by_side import NO_TRANSACTIONS
from streaming.broker.context import namespace_of
from streaming.broker.names import PARTITION, whole_of
from streaming.jobs.replay import load
from streaming.log.partition import by_partition
from streaming.log.table import LogError

IN_PROCESS = 20_000
"""A log with fewer records is folded in this process."""

AN_ESTIMATE = "an estimate"
"""The text of a value that no fold confirms."""

AdviceLevel = Literal["subscription", "topic", "partitioned topic", "namespace"]
"""For what a value holds. Pulsar sets these policies on topics, partitioned topics and namespaces; what subscriptions need shows
which one makes the value so large."""


class Need(msgspec.Struct):
    """The smallest value of a policy that loses nothing of what was consumed: of a `subscription`, or of all subscriptions of a
    topic, a partitioned topic, or a namespace's topics without policies of their own (`name`).

    `smallest` in `unit`; None: no value that makes a difference, or nothing was consumed. `loses`: the largest value that was
    tried and loses something, which takes `lost` consumed messages: one unit less than `smallest`, or the search ended before.
    None: even the least value loses nothing. `consumed` and `waiting`: messages × subscriptions that were acked (of retention:
    delivered), and that are in the backlog at the end. `unknown`: consumed ones whose ack comes after `exact_until` (ms), the
    first moment at which a client would have seen something else with `smallest`. `text`: what else there is to know.
    """

    level: AdviceLevel
    name: str
    subscription: str | None
    policy: PolicyName
    unit: str
    smallest: int | None
    loses: int | None
    lost: int
    consumed: int
    waiting: int
    unknown: int
    exact_until: int | None
    text: str


class Curve(msgspec.Struct):
    """What the values that were tried lose and store, for a topic and policy. `points` rise by value."""

    topic: str
    policy: PolicyName
    unit: str
    points: list[Point]


class Advice(msgspec.Struct):
    """What a log's topics need at least. `begin` and `end`: the time that the log covers (ms). `folds`: how often the ingress
    partition that took most was folded. `sampled`: the topics whose entries are sampled, see `PersistentTopic.is_sampled`. `quarantined`: how
    many records of the log each rule set aside."""

    log: str
    records: int
    begin: int
    end: int
    folds: int
    needs: list[Need]
    curves: list[Curve]
    sampled: list[str] = []
    quarantined: dict[str, int] = {}


_text, _number = pa.string(), pa.int64()

NEEDS = pa.schema(
    [
        ("level", _text), ("name", _text), ("subscription", _text), ("policy", _text), ("unit", _text),
        ("smallest", _number), ("loses", _number), ("lost", _number), ("consumed", _number), ("waiting", _number),
        ("unknown", _number), ("exact_until", _number), ("text", _text),
    ]
)  # fmt: skip
"""The columns of `needs`, as in `Need`."""

CURVES = pa.schema(
    [
        ("topic", _text), ("policy", _text), ("unit", _text), ("value", _number), ("lost", _number),
        ("unknown", _number), ("storage", _number), ("peak_storage", _number), ("refused", pa.bool_()),
    ]
)  # fmt: skip
"""The columns of `curves`: a row per topic, policy and value, as in `Point`."""


@checked
def advise(
    log: str | Path | pa.Table,
    *,
    policies: Sequence[PolicyName] = POLICY_NAMES,
    partitions: int | None = None,
    processes: int | None = None,
    estimate: bool = False,
) -> Advice:
    """What the topics of `log` need at least.

    Args:
        log: as for `replay`. It need not fit into memory.
        policies: only these.
        partitions: as for `replay`.
        processes: search so many ingress partitions at a time; by default as many as there are cores.
        estimate: fold the log once only. The values are exact for plain traffic, but no fold confirms them; none for retention.

    Each policy is tried by itself; all else is as in the log. Raises `LogError` or `FileNotFoundError`.
    """
    loaded = load(log, partitions=partitions)
    if loaded.transacts:
        raise LogError(NO_TRANSACTIONS)
    parts = list(
        _search_all(
            [*by_partition(loaded.records).items()],
            processes,
            len(loaded.records),
            lambda own, partition: search(own, partition, policies, estimate=estimate),
        )
    )
    found = [each for part in parts for each in part.topics]
    return Advice(
        log=str(log) if isinstance(log, str | Path) else "a table",
        records=loaded.logged,
        begin=min((each.first for each in parts), default=0),
        end=max((each.last for each in parts), default=0),
        folds=max((each.folds for each in parts), default=0),
        needs=sorted(_needs(found), key=_order),
        curves=sorted(
            (Curve(each.topic, each.policy, UNITS[each.policy], each.points) for each in found if each.points),
            key=lambda each: (each.topic, POLICY_NAMES.index(each.policy)),
        ),
        sampled=sorted(topic for part in parts for topic in part.sampled),
        quarantined=in_all(part.quarantined for part in parts),
    )  # fmt: skip


def _search_all(
    work: list[tuple[int, pa.Table]],
    processes: int | None,
    total: int,
    search_one: Callable[[pa.Table, int], PartitionSearch],
) -> Iterator[PartitionSearch]:
    workers = min(processes or os.cpu_count() or 1, len(work))
    if workers < 2 or (processes is None and total < IN_PROCESS):
        yield from (search_one(own, partition) for partition, own in work)
        return
    yield from forked(lambda each: search_one(each[1], each[0]), work, workers)


# ---- what a topic, a partitioned topic and a namespace need


def _needs(found: Sequence[TopicSearch]) -> Iterator[Need]:
    partitioned: dict[tuple[str, PolicyName], list[Need]] = defaultdict(list)
    namespaces: dict[tuple[str, PolicyName], list[Need]] = defaultdict(list)
    for each in found:
        own = [_of_subscription(requirement) for requirement in each.requirements]
        yield from own
        topic = _together("topic", each.topic, each.policy, own)
        if topic is None:
            continue
        yield topic
        if PARTITION.fullmatch(each.topic):
            partitioned[whole_of(each.topic), each.policy].append(topic)
        namespaces[namespace_of(each.topic), each.policy].append(topic)
    for level, groups in (("partitioned topic", partitioned), ("namespace", namespaces)):
        for (name, policy), members in groups.items():
            whole_ = _together(level, name, policy, members)  # type: ignore[arg-type]
            if whole_ is not None:
                yield whole_


def _of_subscription(each: Requirement) -> Need:
    return Need(
        level="subscription", name=each.topic, subscription=each.subscription, policy=each.policy,
        unit=UNITS[each.policy], smallest=each.smallest, loses=each.loses, lost=each.lost, consumed=each.consumed,
        waiting=each.waiting, unknown=each.unknown, exact_until=each.exact_until, text=_said(each),
    )  # fmt: skip


def _said(each: Requirement) -> str:
    if not each.consumed:
        return "nothing was consumed"
    if each.estimated:
        return AN_ESTIMATE
    if each.smallest is None:
        return "the broker refuses the value" if each.refused else "every value loses something"
    if each.loses is None:
        return "any value will do"
    if each.loses < each.smallest - 1:
        return f"something from {each.loses + 1} to {each.smallest}: the search ended"
    return ""


def _together(level: AdviceLevel, name: str, policy: PolicyName, members: Sequence[Need]) -> Need | None:
    """What those need together that consumed something: what the neediest needs. None: none of them did."""
    needy = [each for each in members if each.consumed]
    if not needy:
        return None
    impossible = [each for each in needy if each.smallest is None]
    most = max((each.smallest or 0 for each in needy), default=0)
    decisive = impossible or [each for each in needy if each.smallest == most]
    loses = max((each.loses for each in decisive if each.loses is not None), default=None)
    opened = [each.exact_until for each in needy if each.exact_until is not None]
    return Need(
        level=level, name=name, subscription=None, policy=policy, unit=UNITS[policy],
        smallest=None if impossible else most, loses=loses,
        lost=sum(each.lost for each in decisive if each.loses == loses), consumed=sum(each.consumed for each in members),
        waiting=sum(each.waiting for each in members), unknown=sum(each.unknown for each in needy),
        exact_until=min(opened, default=None), text=decisive[0].text,
    )  # fmt: skip


_LEVELS: tuple[AdviceLevel, ...] = ("topic", "subscription", "partitioned topic", "namespace")


def _order(each: Need) -> tuple[object, ...]:
    own = each.level in ("topic", "subscription")
    return not own, _LEVELS.index(each.level) if not own else 0, each.name, POLICY_NAMES.index(each.policy), each.subscription or ""  # fmt: skip


# ---- as tables and files


def needs(found: Advice) -> pa.Table:
    """What is needed, as an Arrow table with the columns `NEEDS`."""
    return pa.Table.from_pylist([msgspec.to_builtins(each) for each in found.needs], NEEDS)


def curves(found: Advice) -> pa.Table:
    """What each value loses and stores, as an Arrow table with the columns `CURVES`."""
    return pa.Table.from_pylist(list(_rows(found.curves)), CURVES)


def _rows(found: Iterable[Curve]) -> Iterator[dict[str, object]]:
    for curve in found:
        for point in curve.points:
            yield {
                "topic": curve.topic,
                "policy": curve.policy,
                "unit": curve.unit,
                **msgspec.structs.asdict(point),
            }


def to_json(found: Advice) -> str:
    """The answer as one JSON object: times in ms since the epoch, sizes in bytes, values in the policies' units."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def write(found: Advice, out: Path) -> None:
    """Write `needs.parquet`, `curves.parquet` and `advice.json` into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    pq.write_table(needs(found), out / "needs.parquet", compression="zstd")
    pq.write_table(curves(found), out / "curves.parquet", compression="zstd")
    (out / "advice.json").write_text(to_json(found) + "\n")
