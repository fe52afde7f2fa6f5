"""The answer of a what-if as one HTML page with plots, which needs no network and follows the reader's light or dark mode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streaming.answers.fates import CHANGES
from streaming.answers.quarantined import quarantine_note
from streaming.answers.sampled import sampled_note
from streaming.answers.whatif.answer import Model, Rules, Totals, WhatIf, changes_in
from streaming.answers.whatif.page import (
    clock_text,
    compacted_note,
    page,
    short_name,
    shortened,
    size_text,
    span_text,
    table,
    window_text,
)
from streaming.answers.whatif.texts import is_in, numbered
from streaming.log.policy_files import setting_descriptions

PLOTTED, LISTED, POINTS = 12, 200, 400
"""How many subscriptions are plotted, how many rows a table has, and how many points a line has, at most."""

ALL_POINTS = 100_000
"""Lines have fewer points if they would have more than so many together."""

_LINE = 2

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 560, 220, 84, 28, 12, 12

_MEASURES = {
    "backlog": "Backlog (entries)",
    "oldest": "Age of the oldest unacknowledged message",
    "storage": "Storage of the topic",
}


def report(found: WhatIf) -> str:
    """The page, as HTML."""
    names = [each.policies for each in found.totals]
    differing = found.differing()
    body = "".join(
        (
            _head(found),
            _legend(names),
            "<h2>In all</h2>",
            _totals(found.totals, "open-loop" if found.model is None else "modelled"),
            _changes(found.totals),
            "" if found.rules is None else _rules(found.rules),
            "<h2>By subscription</h2>",
            _subscriptions(differing),
            "<h2>Over time</h2>",
            _plots(found, differing, names),
            "<h2>Where clients would have seen something else</h2>",
            _open_loop(found.summary),
            "" if found.model is None else _model(found.model),
            "<h2>Messages that differ</h2>",
            _messages(found, "open-loop" if found.model is None else "modelled"),
        )
    )
    return page(f"What if: {found.log}", body)


def _head(found: WhatIf) -> str:
    window = f"{window_text(found.records, found.begin, found.end)} (UTC)"
    clients = (
        "Clients act as recorded. Each answer is exact until the first moment at which a client would have seen something else; "
        "from there on its topic is open-loop."
    )
    if found.model is not None:
        clients = (
            f"Clients are modelled, with the seed {found.model.settings.seed}. Each answer is exact until the first moment at "
            "which a client would have seen something else; from there on it is what the modelled clients would have done."
        )
    aside = [*quarantine_note(found.quarantined), *sampled_note(found.sampled)]
    aside += map(compacted_note, found.compacted[:_COMPACTED])
    noted = "".join(f'<p class="soft">{escape(each)}</p>' for each in aside)
    return f'<h1>What if: {escape(found.log)}</h1><p class="soft">{window}</p><p class="soft">{clients}</p>{noted}'


_COMPACTED = 100
"""So many compacted topics are named; the JSON has all."""


def _model(model: Model) -> str:
    """What the modelled clients did, and what the model takes for granted."""
    rows = [[run.policies, run.sent, run.left, run.given_up] for run in model.runs]
    columns = ["policies", "commands of the model", "commands of the log left out", "messages given up"]
    assumed = [
        *model.assumed,
        f"The send timeout is {span_text(model.settings.send_timeout)}; 0 s: producers never give up.",
    ]
    assumed += [f"Left as recorded: {count:,} {what}." for what, count in model.left_out.items()]
    listed = "".join(f"<li>{escape(text)}</li>" for text in assumed)
    return f"<h2>The modelled clients</h2>{table(columns, rows, 1)}<ul>{listed}</ul>"


def _legend(names: Sequence[str]) -> str:
    keys = "".join(
        f'<span><span class="key" style="background:var(--s{_colour(number)})"></span>{escape(shortened(name))}</span>'
        for number, name in enumerate(names)
    )
    return f'<div class="legend">{keys}</div>'


def _colour(number: int) -> int:
    """Colour 0 is the baseline's. After seven policy sets, colours repeat."""
    return 0 if number == 0 else (number - 1) % 7 + 1


def _totals(totals: Sequence[Totals], kind: str) -> str:
    rows: list[list[object]] = [
        [name, *(getattr(each, field) for each in totals)]
        for name, field in (
            ("expired", "expired"), ("evicted", "evicted"), ("trimmed", "trimmed"), ("refused", "refused"),
            ("backlog at the end", "backlog"),
        )
    ]  # fmt: skip
    rows += [
        ["storage at the end", *(size_text(each.storage) for each in totals)],
        ["peak storage, summed over topics", *(size_text(each.peak_storage) for each in totals)],
        ["producers held", *(span_text(each.held) for each in totals)],
        [f"{kind} topics", *(each.open_loop_topics for each in totals)],
        ["unchanged messages × subscriptions", "", *(each.unchanged for each in totals[1:])],
        [f"of {kind} topics", "", *(each.unjudged for each in totals[1:])],
    ]
    return table(["", *(each.policies for each in totals)], rows, 1)


def _changes(totals: Sequence[Totals]) -> str:
    """A bar per policy set and change, on one scale."""
    bars = [
        (number, each.policies, change, each.differences[change])
        for number, each in enumerate(totals)
        for change in CHANGES
        if each.differences[change]
    ]
    if not bars:
        return "<p>No message is affected under any of the policy sets.</p>"
    more, bars = _more(len(bars) - LISTED), bars[:LISTED]
    most = max(count for *_, count in bars)
    left, row, width = 290, 22, 900
    parts = []
    for place, (number, name, change, count) in enumerate(bars):
        y = place * row + 4
        length = max((width - left - 90) * count / most, 1.5)
        parts.append(
            f'<text x="{left - 10}" y="{y + 12}" text-anchor="end">{escape(shortened(name))}: {change}</text>'
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="14" rx="3" fill="var(--s{_colour(number)})">'
            f"<title>{escape(shortened(name))}: {count:,} {change}</title></rect>"
            f'<text x="{left + length + 8:.1f}" y="{y + 12}">{count:,}</text>'
        )
    height = len(bars) * row + 6
    return (
        f'<figure style="margin-top:16px"><h3>Messages × subscriptions that differ from the baseline</h3>'
        f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg></figure>{more}'
    )


def _rules(rules: Rules) -> str:
    """Which settings of a profile make its differences."""
    meanings = setting_descriptions()
    rows = []
    for rule in rules.met:
        on = rule.first_seen
        seen: list[object] = (
            [clock_text(on.open_loop_from or 0), on.open_loop_baseline, on.open_loop_proposed]
            if on
            else ["", "", ""]
        )
        rows.append(
            [
                rule.change,
                rule.notices,
                meanings[rule.setting],
                rule.shown_by,
                *seen,
                rule.messages,
                len(rule.topics),
            ]
        )
    columns = ["rule or default", "what you notice", "what it means", "shown by", "first seen by a client", "in the baseline", "under the profile", "affected messages", "topics"]  # fmt: skip
    text = (
        f"{len(rules.met)} of the {rules.settings} that differ make a difference to this log by themselves."
    )
    together = "".join(
        f"<li>{count:,} more messages are affected by {escape(names or 'several together')}.</li>"
        for names, count in list(rules.together.items())[:LISTED]
    )
    shown = table(columns, rows, 7, longest=2_000) if rows else ""
    return f"<h2>What makes the differences of {escape(rules.policies)}</h2><p>{text}</p>{shown}<ul>{together}</ul>"


def _subscriptions(differing: pa.Table) -> str:
    rows = differing.slice(0, LISTED).to_pylist()
    if not rows:
        return "<p>No subscription differs.</p>"
    used = changes_in(differing)
    cells = [
        [row["policies"], short_name(row["topic"]), row["subscription"], *(row[column] or "" for column in used.values()),
         row["lost_undelivered"], row["lost_delivered"], row["peak_backlog"], "" if row["peak_oldest"] is None else span_text(row["peak_oldest"]),
         "the end" if row["open_loop_from"] is None else clock_text(row["open_loop_from"])]
        for row in rows
    ]  # fmt: skip
    columns = ["policies", "topic", "subscription", *used, "lost, never delivered", "lost, delivered", "peak backlog", "oldest", "exact until"]  # fmt: skip
    return table(columns, cells, 3) + _more(len(differing) - LISTED)


def _more(left: int) -> str:
    return f'<p class="soft">{left:,} more rows are in the Parquet files.</p>' if left > 0 else ""


def _plots(found: WhatIf, differing: pa.Table, names: Sequence[str]) -> str:
    first = differing.slice(0, PLOTTED * len(names)).to_pylist()
    chosen = list(dict.fromkeys((row["topic"], row["subscription"]) for row in first))[:PLOTTED]
    if not chosen:
        return "<p>Nothing differs.</p>"
    topics = {topic for topic, _ in chosen}
    points = _points(found.series.filter(is_in(found.series["topic"], topics)))
    summary = found.summary.filter(is_in(found.summary["topic"], topics))
    opened = {
        (row["topic"], row["policies"]): row["open_loop_from"]
        for row in summary.select(["topic", "policies", "open_loop_from"]).to_pylist()
        if row["open_loop_from"] is not None
    }
    most = max(2, min(POINTS, ALL_POINTS // (len(chosen) * len(_MEASURES) * len(names))))
    parts = []
    for topic, subscription in chosen:
        for measure, title in _MEASURES.items():
            if measure == "storage" and (topic, subscription) != next(
                each for each in chosen if each[0] == topic
            ):
                continue
            of = None if measure == "storage" else subscription
            lines = [
                (number, name, points.get((topic, of, measure, name), []))
                for number, name in enumerate(names)
            ]
            if all(len(points) < _LINE for *_, points in lines):
                continue  # the outputs of replays don't tell it
            what = short_name(topic) + (f" · {subscription}" if of is not None else "")
            marks = [
                (number, opened[topic, name]) for number, name in enumerate(names) if (topic, name) in opened
            ]
            parts.append(_plot(what, title, measure, lines, marks, (found.begin, found.end), most))
    return f'<div class="plots">{"".join(parts)}</div>'


def _points(series: pa.Table) -> dict[tuple[str, str | None, str, str], list[tuple[int, int]]]:
    """By topic, subscription, measure and policy set: the moments (ms) and values."""
    texts, rows = zip(
        *(numbered(series[name]) for name in ("topic", "subscription", "measure", "policies")), strict=True
    )
    found: defaultdict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    columns = (*(each.tolist() for each in rows), series["clock"].to_pylist(), series["value"].to_pylist())
    for *line, clock, value in zip(*columns, strict=True):
        found[tuple(line)].append((clock, value))
    topics, subscriptions, measures, policies = texts
    return {
        (topics[topic], None if of < 0 else subscriptions[of], measures[measure], policies[name]): line
        for (topic, of, measure, name), line in found.items()
    }


def _plot(
    what: str, title: str, measure: str, lines: Sequence[tuple[int, str, list[tuple[int, int]]]],
    marks: Sequence[tuple[int, int]], window: tuple[int, int], count: int,
) -> str:  # fmt: skip
    """One measure over time, a line of at most `count` points per run; the baseline is drawn last, broken, so that equal lines show both."""
    begin, end = window
    span = max(end - begin, 1)
    most = max((value for _, _, points in lines for _, value in points), default=0) or 1

    def x(clock: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (clock - begin) / span

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / most)

    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(most * share):.1f}" y2="{y(most * share):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y(most * share) + 4:.1f}" text-anchor="end">{_value(measure, most * share)}</text>'
        for share in (0.0, 0.5, 1.0)
    ]
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        clock = int(begin + span * share)
        parts.append(
            f'<text x="{x(clock):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{clock_text(clock)[5:16]}</text>'
        )
    for number, clock in marks:
        parts.append(
            f'<line class="mark" style="stroke:var(--s{_colour(number)})" x1="{x(clock):.1f}" x2="{x(clock):.1f}" y1="{_TOP}" '
            f'y2="{_HEIGHT - _BOTTOM}"><title>other clients from {clock_text(clock)}</title></line>'
        )
    for number, name, points in (*lines[1:], *lines[:1]):
        if points:
            path = _steps([(x(clock), y(value)) for clock, value in _thinned(points, count)], x(end))
            dash = ' stroke-dasharray="5 4"' if number == 0 else ""
            parts.append(
                f'<path d="{path}" fill="none" stroke="var(--s{_colour(number)})" stroke-width="2"{dash}>'
                f"<title>{escape(shortened(name))}</title></path>"
            )
    return (
        f'<figure><h3>{escape(shortened(what))}</h3><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg><figcaption>{escape(title)}</figcaption></figure>'
    )


def _thinned(points: list[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """At most so many points, the highest of each part: peaks stay."""
    size = -(-len(points) // count)
    for start in range(0, len(points), size):
        yield max(points[start : start + size], key=lambda point: point[1])


def _steps(points: Sequence[tuple[float, float]], end: float) -> str:
    (first, height), *rest = points
    parts = [f"M{first:.1f} {height:.1f}", *(f"H{across:.1f}V{up:.1f}" for across, up in rest), f"H{end:.1f}"]
    return "".join(parts)


def _open_loop(summary: pa.Table) -> str:
    opened = summary.filter(
        pc.and_(pc.is_null(summary["subscription"]), pc.is_valid(summary["open_loop_from"]))
    )
    rows = [
        [row["policies"], short_name(row["topic"]), row["open_loop_baseline"], row["open_loop_proposed"],
         clock_text(row["open_loop_from"]), row["open_loop_offset"]]
        for row in opened.slice(0, LISTED).to_pylist()
    ]  # fmt: skip
    if not rows:
        return "<p>Nowhere: the answer is exact throughout.</p>"
    columns = ["policies", "topic", "in the baseline", "under the policies", "from", "offset"]
    return table(columns, rows, 4) + _more(len(opened) - LISTED)


def _messages(found: WhatIf, kind: str) -> str:
    if not len(found.differences):
        return "<p>None.</p>"
    rows = [
        [row["policies"], short_name(row["topic"]), row["subscription"], row["change"], f"{row['producer']} {row['sequence_id']}",
         row["key"] or "", _side(row, "baseline"), _side(row, "proposed"), "yes" if row["open_loop"] else "", row["rules"] or ""]
        for row in found.important(LISTED)
    ]  # fmt: skip
    columns = [
        "policies",
        "topic",
        "subscription",
        "change",
        "producer, sequence id",
        "key",
        "baseline",
        "proposed",
        kind,
        "rules",
    ]
    return table(columns, rows, 10) + _more(len(found.differences) - len(rows))


def _side(row: dict[str, Any], side: str) -> str:
    fate, taken = row[f"{side}_fate"], row[f"{side}_taken"]
    if taken is None:
        return f"{fate}: {row[f'{side}_cause']}" if fate == "refused" else str(fate)
    age = span_text(row[f"{side}_age"])
    return f"{fate} at {clock_text(row[f'{side}_clock'])}, {age} old, {taken}: {row[f'{side}_policy'] or row[f'{side}_cause']}"


def _value(measure: str, value: float) -> str:
    if measure == "oldest":
        return span_text(value)
    return size_text(value) if measure == "storage" else f"{value:,.0f}"
