"""What a what-if answers: tables of how the fate of each message changes, totals, and which rules make the differences."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming.answers.fates import CHANGE_COLUMNS, CHANGES, Change
from streaming.answers.whatif.clients.made_log import ClientSettings
from streaming.answers.whatif.texts import ranks
from streaming.broker.config import setting_text

BASELINE = "baseline"

_text, _number = pa.string(), pa.int64()
_names = pa.dictionary(pa.int32(), pa.string())

_SIDE = [
    ("fate", _names), ("taken", _names), ("clock", _number), ("cause", _names), ("policy", _names), ("age", _number),
    ("delivered", _number), ("deliveries", pa.int32()), ("redelivery_count", pa.int32()),
    ("ledger", _number), ("entry", _number),
]  # fmt: skip

DIFFERENCES = pa.schema(
    [
        ("policies", _names), ("topic", _names), ("subscription", _names), ("change", _names), ("open_loop", pa.bool_()),
        ("offset", _number), ("producer", _names), ("sequence_id", _number), ("key", _text), ("publish_time", _number),
        *((f"{side}_{name}", type_) for side in ("baseline", "proposed") for name, type_ in _SIDE), ("rules", _names),
    ]
)  # fmt: skip
"""A row per message and subscription that differs. `offset`: of the publish in its ingress partition; null: it was there before the log. For each side: what became
of the message; if a rule took it, what had become of it until then, when (ms), the rule and its policy, and the message's age
then (ms); when it was first delivered (ms), how often it was sent, the highest redelivery count that it came with, and its position. 0 or null: never. `rules`: under a profile, the
settings that make it: "a or b" if each does by itself, "a and b" if only both do; null: not known."""

SUMMARY = pa.schema(
    [
        ("policies", _names), ("topic", _names), ("subscription", _names), ("published", _number), ("stored", _number),
        ("duplicates", _number), ("refused", _number), ("unanswered", _number), ("dispatched", _number),
        ("acked", _number), ("expired", _number), ("evicted", _number), ("skipped", _number),
        ("lost_undelivered", _number), ("lost_delivered", _number), ("taken_acked", _number), ("backlog", _number),
        ("peak_backlog", _number), ("storage", _number), ("peak_storage", _number), ("trimmed", _number),
        ("held", _number), ("closed_producers", _number), ("answered_otherwise", _number), ("other_stats", _text), ("oldest", _number), ("peak_oldest", _number),
        *((column, _number) for column in CHANGE_COLUMNS.values()), ("unchanged", _number),
        ("open_loop_from", _number), ("open_loop_offset", _number), ("open_loop_baseline", _text),
        ("open_loop_proposed", _text),
    ]
)  # fmt: skip
"""A row per policy set (and the baseline), topic, and subscription; null: the topic as a whole. `expired`, `evicted`, `skipped`:
entries that left the backlog so, acked ones in between not counted. `lost_…`: messages that a rule took, by what had become of them; `taken_acked` ones are not
lost. `held`: how long (ms) a backlog quota kept producers off. `answered_otherwise`: how many admin calls are not answered as in the baseline.
`other_stats`: the fields of the admin API's stats that differ at the end. `oldest`: the age (ms) of the oldest unacked message at the end,
and at most. `unchanged` and the changes count messages."""

SERIES = pa.schema(
    [("policies", _names), ("topic", _names), ("subscription", _names), ("measure", _names), ("clock", _number), ("value", _number)]
)  # fmt: skip
"""What changed over time: `storage` (bytes) of topics; `backlog` (entries) and `oldest` (ms) of subscriptions."""


class Totals(msgspec.Struct):
    """What a policy set changes in all. `differences` counts messages × subscriptions by change, `unchanged` the others;
    `unjudged` those of `differences` and `unchanged` that are of topics that became open-loop. `unmatched`: commands that named
    a message that never existed. The others are sums over topics and subscriptions, storage in bytes."""

    policies: str
    differences: dict[str, int]
    unchanged: int
    unjudged: int
    open_loop_topics: int
    unmatched: int
    expired: int
    evicted: int
    trimmed: int
    refused: int
    held: int
    backlog: int
    storage: int
    peak_storage: int


class ModelledRun(msgspec.Struct):
    """What the modelled clients did under a policy set: how many commands of their own they `sent`, how many of the log they
    did not send (`left`), and how many messages producers gave up (`given_up`)."""

    policies: str
    sent: int
    left: int
    given_up: int


class Model(msgspec.Struct):
    """How clients were modelled: with which settings, and what was taken for granted. `left_out` counts the commands that were
    left as recorded, by what they are."""

    settings: ClientSettings
    assumed: list[str]
    left_out: dict[str, int]
    runs: list[ModelledRun]


class CompactedTopic(msgspec.Struct):
    """A topic that was compacted under a policy set (or the baseline): of the entries up to where the last compaction went, those that a reader of compacted
    data gets (`kept`, with `size` in bytes) and those that it does not get any more (`left_out`)."""

    policies: str
    topic: str
    kept: int
    size: int
    left_out: int


class Figure(msgspec.Struct):
    """A figure of the summary that differs, of a subscription or (None) of the topic as a whole."""

    subscription: str | None
    name: str
    baseline: int | str | None
    proposed: int | str | None


class RuleOnTopic(msgspec.Struct):
    """What a rule does on a topic. `differences` counts the affected messages, by subscription. `open_loop_…`: the first moment
    (ms) at which a client would have seen something else, with the record's offset, what it saw, and what it would have seen."""

    topic: str
    differences: dict[str, int]
    figures: list[Figure]
    open_loop_from: int | None
    open_loop_offset: int | None
    open_loop_baseline: str | None
    open_loop_proposed: str | None


class RuleMet(msgspec.Struct):
    """A setting whose value in the other version, by itself, makes a difference. `differences` counts messages × subscriptions by
    change, those without left out. `notices`: what a user notices of it. `shown_by`: the rule's id and recordings of real brokers."""

    setting: str
    before: Any
    after: Any
    notices: str
    shown_by: str
    differences: dict[str, int]
    topics: list[RuleOnTopic]

    @property
    def change(self) -> str:
        """The setting and both values, in words."""
        return f"{self.setting}: {setting_text(self.before)} -> {setting_text(self.after)}"

    @property
    def messages(self) -> int:
        """How many messages × subscriptions are affected."""
        return sum(self.differences.values())

    @property
    def figures(self) -> list[str]:
        """The figures of the summary that differ on any topic, but for stats."""
        return sorted(
            {each.name.replace("_", " ") for on in self.topics for each in on.figures} - {"other stats"}
        )

    @property
    def stats(self) -> list[str]:
        """The fields of the admin API's stats that differ on any topic at the end."""
        texts = (each.proposed for on in self.topics for each in on.figures if each.name == "other_stats")
        return sorted({name for text in texts for name in str(text).split(", ")})

    @property
    def first_seen(self) -> RuleOnTopic | None:
        """The topic of which a client would have been the first to see something else, or None."""
        seen = [
            (each.open_loop_from, each.topic, each) for each in self.topics if each.open_loop_from is not None
        ]
        return min(seen)[2] if seen else None


class Rules(msgspec.Struct):
    """The rules and defaults of a profile that a log meets, by their settings: those with most differences first. `settings`: how many
    differ between the log's configuration and the profile. `together`: messages × subscriptions that are affected under the
    profile, but under none of these settings alone, by the settings that it takes."""

    profile: str
    policies: str
    settings: int
    met: list[RuleMet]
    together: dict[str, int]


class WhatIf(msgspec.Struct):
    """The log under its own and other policies. `begin` and `end`: the time that it covers (ms). `summary`, `differences` and
    `series` have the columns of `SUMMARY`, `DIFFERENCES` and `SERIES`. `clients`: recorded, or reactive as `model` says. `rules`: under a
    profile, what makes the differences. `sampled`: the topics whose entries are sampled, see `PersistentTopic.is_sampled`.
    `quarantined`: how many records of the log each rule set aside. `compacted`: the topics that were compacted."""

    log: str
    records: int
    begin: int
    end: int
    clients: str
    totals: list[Totals]
    summary: pa.Table
    differences: pa.Table
    series: pa.Table
    model: Model | None = None
    rules: Rules | None = None
    sampled: list[str] = []
    quarantined: dict[str, int] = {}
    compacted: list[CompactedTopic] = []

    def differing(self) -> pa.Table:
        """The rows of the summary about subscriptions whose messages differ, those with most differences first."""
        return _most(self._of_subscriptions(), CHANGES)

    def _of_subscriptions(self) -> pa.Table:
        """The rows of the summary about subscriptions, in the order of names."""
        rows = self.summary.filter(pc.is_valid(self.summary["subscription"]))
        names = ("topic", "subscription", "policies")
        keys = pa.table({name: ranks(rows[name]) for name in names})
        return rows.take(pc.sort_indices(keys, [(name, "ascending") for name in names]))

    def important(self, most: int) -> list[dict[str, Any]]:
        """So many differences at most: what was lost newly before all others, of the subscriptions with most of them, the first messages of
        each."""
        groups: dict[_Group, list[dict[str, Any]]] = {}
        subscriptions = self._of_subscriptions()
        for change in CHANGES:
            for row in _most(subscriptions, [change]).slice(0, most - len(groups)).to_pylist():
                groups[_Group(change, row["policies"], row["topic"], row["subscription"])] = []
        each = most // max(len(groups), 1)
        for batch in self.differences.to_batches():
            wanted = [group for group, rows in groups.items() if len(rows) < each]
            if not wanted:
                break
            for group, places in _places(batch, wanted):
                rows = groups[group]
                rows += batch.take(pa.array(places[: each - len(rows)])).to_pylist()
        return [row for rows in groups.values() for row in rows]


def _most(rows: pa.Table, changes: Iterable[Change]) -> pa.Table:
    """The rows of a summary with messages that changed so, those with most of them first, and else in their order."""
    counts = reduce(pc.add, (pc.fill_null(rows[CHANGE_COLUMNS[change]], 0) for change in changes))
    order = pc.sort_indices(counts, [("", "descending")])
    return rows.take(order.slice(0, pc.sum(pc.greater(counts, 0)).as_py() or 0))


def changes_in(rows: pa.Table) -> dict[Change, str]:
    """The changes that rows of a summary count, and their columns."""
    return {
        change: column
        for change, column in CHANGE_COLUMNS.items()
        if pc.any(pc.greater(rows[column], 0)).as_py()
    }


class _Group(NamedTuple):
    """Differences of one kind of a subscription under a policy set. The fields are columns of `DIFFERENCES`."""

    change: Change
    policies: str
    topic: str
    subscription: str


def _places(batch: pa.RecordBatch, wanted: Sequence[_Group]) -> Iterator[tuple[_Group, np.ndarray[Any, Any]]]:
    """Where the differences of groups are."""
    columns = [batch[name] for name in _Group._fields]
    sizes = [len(column.dictionary) for column in columns]
    codes = np.ravel_multi_index([column.indices.to_numpy() for column in columns], sizes)
    order = np.argsort(codes, kind="stable")
    ranked = codes[order]
    numbers = [
        pc.index_in(pa.array(texts), value_set=column.dictionary).to_pylist()
        for texts, column in zip(zip(*wanted, strict=True), columns, strict=True)
    ]
    for group, own in zip(wanted, zip(*numbers, strict=True), strict=True):
        if None not in own:
            code = np.ravel_multi_index(own, sizes)
            first, stop = np.searchsorted(ranked, (code, code + 1))
            yield group, order[first:stop]


_ROW_GROUP = 1 << 17
_TOGETHER = 8
"""Rows of a group in a file, and how many times as many are in memory at a time to be written."""

_PARQUET: dict[str, Any] = {"compression": "zstd", "row_group_size": _ROW_GROUP}

SHOWN = 1000
"""The JSON has so many differences at most; all of them are in the Parquet files."""


def to_json(found: WhatIf, *, shown: int = SHOWN) -> str:
    """The answer as one JSON object: times in ms since the epoch, ages in ms, sizes in bytes."""
    rows = found.differences
    answer = {
        "log": found.log, "records": found.records, "begin": found.begin, "end": found.end, "clients": found.clients,
        "model": msgspec.to_builtins(found.model), "totals": msgspec.to_builtins(found.totals), "summary": found.summary.to_pylist(),
        "differences": rows.slice(0, shown).to_pylist(), "differences_total": len(rows), "rules": msgspec.to_builtins(found.rules),
        "sampled": found.sampled, "quarantined": found.quarantined, "compacted": msgspec.to_builtins(found.compacted),
    }  # fmt: skip
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def write(found: WhatIf, out: Path) -> None:
    """Write `summary.parquet`, `series.parquet`, `whatif.json`, and the differences below `differences` into a folder. The metadata of the
    tables say how clients acted (`clients`, and `model` as JSON)."""
    out.mkdir(parents=True, exist_ok=True)
    clients: dict[str, str | bytes] = {"clients": found.clients, "model": msgspec.json.encode(found.model)}
    for name in ("summary", "series"):
        table: pa.Table = getattr(found, name)
        table = table.replace_schema_metadata((table.schema.metadata or {}) | clients)
        pq.write_table(table, out / f"{name}.parquet", **_PARQUET)
    names = [each.policies for each in found.totals[1:]]
    _write_parted(found.differences, names, out / DIFFERENCES_FOLDER, clients)
    (out / "whatif.json").write_text(to_json(found) + "\n")


DIFFERENCES_FOLDER = "differences"
"""In the folder of an answer: a file for each policy set and change, ``policies=ttl/change=lost newly/rows.parquet``."""

_PARTS = ("policies", "change")


def _write_parted(
    rows: pa.Table, names: Sequence[str], folder: Path, metadata: Mapping[str, str | bytes]
) -> None:
    """Write a file for each policy set and change that there is, and for what each set loses newly. Readers get both from the paths."""
    shutil.rmtree(folder, ignore_errors=True)  # a process that was killed left it
    schema = pa.schema([field for field in DIFFERENCES if field.name not in _PARTS], {**metadata})
    paths = {name: _path_of(name, number) for number, name in enumerate(names)}
    waiting: dict[tuple[str, str], list[pa.RecordBatch]] = {(name, CHANGES[0]): [] for name in names}
    with ExitStack() as files:
        writers: dict[tuple[str, str], pq.ParquetWriter] = {}

        def put(part: tuple[str, str]) -> None:
            if (writer := writers.get(part)) is None:
                path = folder / f"policies={paths[part[0]]}" / f"change={quote(part[1], safe=' ')}"
                path.mkdir(parents=True)
                file = pq.ParquetWriter(path / "rows.parquet", schema, compression="zstd")
                writer = writers[part] = files.enter_context(file)
            own, waiting[part] = waiting[part], []
            writer.write_table(pa.Table.from_batches(own, schema), _ROW_GROUP)

        count = 0
        for batch in rows.to_batches(_ROW_GROUP):
            for part, places in _parts(batch):
                waiting.setdefault(part, []).append(batch.take(places).select(schema.names))
            count += len(batch)
            while count >= _TOGETHER * _ROW_GROUP:
                most = max(waiting, key=lambda each: sum(map(len, waiting[each])))
                count -= sum(map(len, waiting[most]))
                put(most)
        for part in waiting:
            put(part)


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], pa.Array]]:
    """The policy sets and changes in some rows, and where they are."""
    columns = [batch[name] for name in _PARTS]
    size = len(columns[1].dictionary)
    codes = columns[0].indices.to_numpy() * size + columns[1].indices.to_numpy()
    texts = [column.dictionary.to_pylist() for column in columns]
    for code in np.unique(codes).tolist():
        yield (texts[0][code // size], texts[1][code % size]), pa.array(np.flatnonzero(codes == code))


def _path_of(name: str, number: int) -> str:
    """The name of a policy set in a path, as Hive escapes it. One that is too long for a path is cut, and gets its number."""
    quoted = quote(name, safe=" ")
    if len(quoted) <= _LONGEST:
        return quoted
    return f"{_CUT.sub('', quoted[:_LONGEST])}~{number}"


_LONGEST = 200
_CUT = re.compile("%[0-9A-F]?$")
