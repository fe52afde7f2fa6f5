"""What `streaming.answers.advise.needs` found, as one HTML page with the curves of loss against storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from streaming.answers.advise.needs import AN_ESTIMATE, Advice, Curve, Need
from streaming.answers.advise.search import POLICY_NAMES, UNITS, Point, PolicyName
from streaming.answers.quarantined import quarantine_note
from streaming.answers.sampled import sampled_note
from streaming.answers.whatif.page import clock_text, page, short_name, size_text, table, window_text

PLOTTED, LISTED = 24, 200
"""How many curves are plotted, and how many rows are listed."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 560, 220, 84, 28, 16, 20

_MEANING = (
    "Each value loses nothing of what was consumed, and one unit less loses something. “any”: the least value loses nothing, "
    "either. “unknown”: nothing was consumed. “none”: each value loses something."
)
ESTIMATES = "≈: an estimate from one fold of the log. It is exact for plain traffic; without --estimate, more folds confirm the values."
_CURVES = (
    "Consumed messages that a value loses, against the largest storage of the topic, or against the value if that storage is the same "
    "for all. Each point is a value that was tried."
)

TITLES: dict[PolicyName, str] = {
    "messageTTL": "message TTL",
    "limitSize": "quota: destination_storage",
    "limitTime": "quota: message_age",
    "retentionTimeInMinutes": "retention time",
    "retentionSizeInMB": "retention size",
}


def value_text(need: Need) -> str:
    """A smallest value in words."""
    if need.smallest is None:
        return "unknown" if not need.consumed else "none"
    if need.text == AN_ESTIMATE:
        return f"≈ {need.smallest:,} {need.unit}"
    return "any" if need.loses is None else f"{need.smallest:,} {need.unit}"


def has_estimates(found: Advice) -> bool:
    """Whether no fold confirms the values."""
    return any(each.text == AN_ESTIMATE for each in found.needs)


def by_owner(found: Sequence[Need]) -> Iterator[tuple[Need, dict[PolicyName, Need]]]:
    """The needs of each topic, subscription, partitioned topic and namespace: the first, and all by policy."""
    owners: dict[tuple[str, str, str | None], dict[PolicyName, Need]] = {}
    for each in found:
        owners.setdefault((each.level, each.name, each.subscription), {})[each.policy] = each
    for own in owners.values():
        yield next(iter(own.values())), own


def consumed(own: Mapping[PolicyName, Need]) -> int:
    """How many messages an owner's subscriptions acked. Needs of retention count those that were delivered."""
    return next((each.consumed for name, each in own.items() if not name.startswith("retention")), 0)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points of a curve: the least value that loses nothing, the next smaller one, and others at equal distances."""
    lossless = next((place for place, each in enumerate(points) if not each.lost), len(points) - 1)
    kept = {0, len(points) - 1, lossless, max(lossless - 1, 0)}
    step = max(len(points) // max(most - len(kept), 1), 1)
    for place in range(0, len(points), step):
        if len(kept) < most:
            kept.add(place)
    return [points[place] for place in sorted(kept)]


def report(found: Advice) -> str:
    """The page, as HTML."""
    window = f"{window_text(found.records, found.begin, found.end)} (UTC)"
    body = "".join(
        (
            f'<h1>The smallest policies: {escape(found.log)}</h1><p class="soft">{window}</p>',
            *(f'<p class="soft">{escape(each)}</p>' for each in quarantine_note(found.quarantined)),
            *(f'<p class="soft">{escape(each)}</p>' for each in sampled_note(found.sampled)),
            f"<p>{ESTIMATES if has_estimates(found) else _MEANING}</p>",
            "<h2>What is needed</h2>",
            _needs(found.needs),
            "<h2>Loss against storage</h2>",
            f'<p class="soft">{_CURVES}</p>',
            _plots(found.curves),
        )
    )
    return page(f"The smallest policies: {found.log}", body)


def _needs(found: Sequence[Need]) -> str:
    policies = [name for name in POLICY_NAMES if any(each.policy == name for each in found)]
    rows: list[list[object]] = []
    for first, own in by_owner(found):
        opened = [each.exact_until for each in own.values() if each.exact_until is not None]
        rows.append(
            [first.level, short_name(first.name), first.subscription or "", consumed(own), first.waiting,
             *(value_text(own[name]) if name in own else "" for name in policies),
             clock_text(min(opened)) if opened else "the end"]
        )  # fmt: skip
    columns = [
        "of",
        "name",
        "subscription",
        "consumed",
        "backlog",
        *(TITLES[name] for name in policies),
        "exact until",
    ]
    more = len(rows) - LISTED
    note = f'<p class="soft">{more:,} more rows are in the Parquet files.</p>' if more > 0 else ""
    return table(columns, rows[:LISTED], 3) + note


def _plots(found: Sequence[Curve]) -> str:
    chosen = [each for each in found if any(point.lost for point in each.points)]
    if not chosen:
        return "<p>No value that was tried loses anything.</p>"
    figures = "".join(map(_plot, chosen[:PLOTTED]))
    more = len(chosen) - PLOTTED
    note = f'<p class="soft">{more:,} more curves are in the Parquet files.</p>' if more > 0 else ""
    return f'<div class="plots">{figures}</div>{note}'


def _plot(curve: Curve) -> str:
    points = [each for each in curve.points if not each.refused]
    unit, highest = UNITS[curve.policy], max(each.lost for each in points) or 1
    across, caption = [each.peak_storage for each in points], "Lost messages against peak storage"
    shown: Callable[[int], str] = size_text
    if len(set(across)) == 1:  # what is lost was stored before, such as in a single ledger
        caption = f"Lost messages against the value; each stores at most {size_text(across[0])}"
        across = [each.value for each in points]
        shown = f"{{:,}} {unit}".format

    least, most = min(across), max(across)

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((at - least) / (most - least) if most > least else 0.5)

    def y(lost: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - lost / highest)

    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(highest * share):.1f}" y2="{y(highest * share):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y(highest * share) + 4:.1f}" text-anchor="end">{highest * share:,.0f}</text>'
        for share in (0.0, 0.5, 1.0)
    ]
    for at, anchor in {
        least: "start" if most > least else "middle",
        most: "end" if most > least else "middle",
    }.items():
        parts.append(f'<text x="{x(at):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{shown(at)}</text>')
    path = " ".join(f"{x(at):.1f},{y(each.lost):.1f}" for at, each in zip(across, points, strict=True))
    parts.append(f'<polyline points="{path}" fill="none" stroke="var(--s1)" stroke-width="2"/>')
    parts += [_dot(x(at), y(each.lost), each, unit) for at, each in zip(across, points, strict=True)]
    title = f"{short_name(curve.topic)} · {TITLES[curve.policy]}"
    return (
        f'<figure><h3>{escape(title)}</h3><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg><figcaption>{caption}</figcaption></figure>"
    )


def _dot(x: float, y: float, point: Point, unit: str) -> str:
    unknown = f", {point.unknown:,} unknown" if point.unknown else ""
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--s{1 if point.lost else 3})"><title>{point.value:,} {unit}: '
        f"{point.lost:,} lost, at most {size_text(point.peak_storage)} stored{unknown}</title></circle>"
    )
