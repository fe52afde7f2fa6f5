"""``docs/idea.svg``: one log, folded under two TTLs, and what differs. Written by ``make docs``; a test compares the file.

The numbers are those of the log in docs/guide/replay.md.
"""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT = 880, 410

STYLE = """\
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 14px; fill: #1f2328; }
.mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 12.5px; }
.title { font-weight: 600; }
.quiet { fill: #59636e; font-size: 13px; }
.box { fill: #f6f8fa; stroke: #d1d9e0; }
.broker { fill: #ddf4ff; stroke: #54aeff; }
.differ { fill: #fff8c5; stroke: #d4a72c; }
.line { stroke: #59636e; stroke-width: 1.5; fill: none; }
.tip { fill: #59636e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .quiet { fill: #9198a1; }
  .box { fill: #151b23; stroke: #3d444d; }
  .broker { fill: #0c2d4d; stroke: #1f6feb; }
  .differ { fill: #3b2e04; stroke: #9e6a03; }
  .line { stroke: #9198a1; }
  .tip { fill: #9198a1; }
}
"""

LOG = (
    "SUBSCRIBE billing",
    "FLOW 2 permits",
    "publish  a book",
    "publish  a lamp",
    "publish  a chair",
    "ACK  1:0",
    "TICK  ten minutes later",
)
ROWS = (
    "SEND_RECEIPT 1:0   MESSAGE 1:0",
    "SEND_RECEIPT 1:1   MESSAGE 1:1",
    "SEND_RECEIPT 1:2",
)


def picture() -> str:
    """The text of ``docs/idea.svg``."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        "<title>One command log, folded by the broker under two message TTLs, and the difference between the rows</title>",
        f"<style>\n{STYLE}</style>",
        *_listed(10, 90, 210, "Command log", LOG),
        *_broker(300, 30, "messageTTL = 60 s", "as recorded"),
        *_broker(300, 210, "messageTTL = 1 h", "what if"),
        *_listed(560, 10, 310, "Rows", (*ROWS, "EXPIRED billing, 2 entries: TTL 60 s")),
        *_listed(560, 190, 310, "Rows", (*ROWS, "backlog of billing: 2 entries")),
        *_arrow("M220 165 C 262 165 258 85 292 85", 292, 85),
        *_arrow("M220 185 C 262 185 258 265 292 265", 292, 265),
        *_arrow("M502 85 H 552", 552, 85),
        *_arrow("M502 265 H 552", 552, 265),
        '<path class="line" d="M715 160 V 182" stroke-dasharray="3 3"/>',
        *_arrow("M715 336 V 352", 715, 360, down=True),
        '<rect class="differ" x="300" y="364" width="570" height="36" rx="6"/>',
        _text(316, 387, "Difference: with one hour, billing still has 1:1 and 1:2", "title"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _listed(x: int, y: int, width: int, title: str, lines: tuple[str, ...]) -> list[str]:
    height = 46 + 24 * len(lines)
    return [
        f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>',
        _text(x + 14, y + 26, title, "title"),
        *(_text(x + 14, y + 52 + 24 * number, line, "mono") for number, line in enumerate(lines)),
    ]


def _broker(x: int, y: int, policy: str, note: str) -> list[str]:
    return [
        f'<rect class="broker" x="{x}" y="{y}" width="202" height="110" rx="6"/>',
        _text(x + 101, y + 28, "Broker", "title", middle=True),
        _text(x + 101, y + 52, "fold(log) → rows", "mono", middle=True),
        _text(x + 101, y + 76, policy, "mono", middle=True),
        _text(x + 101, y + 97, note, "quiet", middle=True),
    ]


def _text(x: int, y: int, text: str, style: str, *, middle: bool = False) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text class="{style}" x="{x}" y="{y}"{anchor} xml:space="preserve">{escape(text)}</text>'


def _arrow(path: str, x: int, y: int, *, down: bool = False) -> list[str]:
    tip = (
        f"M{x - 5} {y - 7} L{x} {y} L{x + 5} {y - 7} Z"
        if down
        else f"M{x} {y - 5} L{x + 8} {y} L{x} {y + 5} Z"
    )
    return [f'<path class="line" d="{path}"/>', f'<path class="tip" d="{tip}"/>']
