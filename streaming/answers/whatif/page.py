"""What reports share: a page of HTML that needs no network and follows the reader's light or dark mode, tables, and figures as texts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from schemas.printable import counted
from schemas.units import moment
from streaming.answers.whatif.answer import CompactedTopic

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --card: #ffffff; --ink: #1d1d1b; --soft: #62615c; --line: #e4e3de;
  --s0: #6f6e69; --s1: #2a78d6; --s2: #d9622b; --s3: #14876a; --s4: #8a4fc7; --s5: #b03a6b; --s6: #8a7a12; --s7: #3b6e8f; }
@media (prefers-color-scheme: dark) { :root { --page: #161615; --card: #1f1f1d; --ink: #efeeea; --soft: #a5a49e;
  --line: #383733; --s0: #a3a29c; --s1: #66a5ee; --s2: #ee8a59; --s3: #3fb896; --s4: #b58ae6; --s5: #e07aa4; --s6: #c9b648;
  --s7: #7fb2d2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 28px 20px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 36px 0 8px; }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; overflow-wrap: anywhere; }
p { margin: 4px 0 10px; max-width: 75ch; } .soft, caption, figcaption { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: 4px 12px 4px 0; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } .text { text-align: left; overflow-wrap: break-word; max-width: 32em; }
td:not(.text) { white-space: nowrap; } th { vertical-align: bottom; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 14px; }
figure { margin: 0; padding: 12px; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.plots svg text { font-size: 15px; }
.grid { stroke: var(--line); } .mark { stroke: var(--soft); stroke-dasharray: 2 3; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0 14px; font-size: 13.5px; }
.key { display: inline-block; width: 18px; height: 3px; margin: 0 7px 4px 0; border-radius: 2px; }
"""
"""The style sheet. The colours of lines are --s0 to --s7."""


def page(title: str, body: str) -> str:
    """A page with a title (text) and a body (HTML)."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n'
    )


LONGEST = 150
"""Names, keys and causes are cut after so many characters: they have as many as clients like."""


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text, or its beginning."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], texts: int, longest: int = LONGEST
) -> str:
    """A table of which the first `texts` columns are texts, of which each is cut after the `longest` characters."""

    def cell(tag: str, number: int, value: object) -> str:
        kind = ' class="text"' if number < texts else ""
        shown = (
            f"{value:,}"
            if isinstance(value, int) and not isinstance(value, bool)
            else str("" if value is None else value)
        )
        return f"<{tag}{kind}>{escape(shortened(shown, longest))}</{tag}>"

    head = "".join(cell("th", number, name) for number, name in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(cell("td", number, value) for number, value in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def short_name(topic: str) -> str:
    """A topic's name without what most names begin with."""
    return topic.removeprefix("persistent://")


def clock_text(ms: int) -> str:
    """A time (ms since the epoch) in UTC."""
    return moment(ms).strftime("%Y-%m-%d %H:%M:%S")


def compacted_note(of: CompactedTopic) -> str:
    """What compaction keeps of a topic under a policy set, in words."""
    name = of.topic.removeprefix("persistent://")
    return (
        f"{of.policies}: {name} is compacted: its compacted data has {counted(of.kept, 'entry')} of {size_text(of.size)}, and not the "
        f"{of.left_out:,} others up to where the last compaction went."
    )


def window_text(records: int, begin: int, end: int) -> str:
    """How many records a log has, and their times (ms since the epoch) in UTC."""
    count = counted(records, "record")
    return f"{count}, {clock_text(begin)} to {clock_text(end)}" if records else count


def size_text(size: float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def span_text(ms: float | None) -> str:
    """A duration in words."""
    seconds = (ms or 0) / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
