"""Data Docs that open without a network: Great Expectations' pages with our style instead of remote resources.

Its pages load styles, scripts, fonts and images from seven servers and are hard to read without them. A few lines of style
are enough to read them, so all remote resources are replaced by these.
"""

import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 78rem; padding: 1rem 1.5rem; }
h1, h4 { font-size: 1.5rem; margin: .5rem 0; } h5, h6 { font-size: 1.05rem; margin: .6rem 0 .2rem; }
a { color: #06c; } @media (prefers-color-scheme: dark) { a { color: #6bf; } }
table { border-collapse: collapse; margin: .4rem 0 1rem; } th { text-align: left; }
td, th { border-bottom: 1px solid var(--line); padding: .25rem .7rem .25rem 0; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
code { overflow-wrap: anywhere; } ul { margin: 0; padding-left: 1.2rem; }
.alert, .card { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .5rem .8rem; }
.ge-section { margin: 1.2rem 0; } .ge-navigation-sidebar-content { list-style: none; padding: 0; columns: 12rem 4; }
.badge { border: 1px solid var(--line); border-radius: 4px; padding: 0 .3rem; font-size: .85em; }
.cooltip .top { display: none; } .cooltip:hover .top { display: block; position: absolute; background: Canvas;
  border: 1px solid var(--line); border-radius: 6px; padding: .3rem .6rem; max-width: 30rem; }
.text-success::before { content: "✓"; } .text-danger::before { content: "✗"; } .text-warning::before { content: "!"; }
.text-success, .holds { color: #17803d; } .text-danger, .broken { color: #d22; font-weight: 600; }
"""

_REMOVED = (
    r"<script\b.*?</script>",
    r"<link\b[^>]*>",
    r"<style\b.*?</style>",
    r"<img\b[^>]*>",
    r"<footer\b.*?</footer>",
    r'<nav class="navbar navbar-expand.*?</nav>\s*</div>\s*</nav>',  # the logo and a link home: our page has its own
    r'<div class="card mb-3">\s*<div class="card-header p-2">\s*<strong>Actions.*?</label>\s*</div>\s*</div>\s*</div>\s*</div>\s*</div>',
    r"Data asset: None",
    r"<p class=\"m-0\">\s*<a data-toggle=\"collapse\".*?</p>",  # a toggle for a section that is always open here
)


class SuitePage(NamedTuple):
    """A suite's page: Great Expectations' result, the number of rows, and the number of rows that break each rule."""

    name: str
    about: str
    rows: int
    broken: dict[str, int]
    result: Any


def is_page(path: Path) -> bool:
    """Whether a file is one of the pages that `write` writes."""
    return path.suffix == ".html" and path.is_file() and _STYLE in path.read_text(errors="replace")


def write(folder: Path, title: str, pages: Iterable[SuitePage], notes: Iterable[str] = ()) -> Path:
    """Write one page per suite and ``index.html``. Returns the path of the index. `notes`: sentences for the index."""
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view.view import DefaultJinjaPageView

    folder.mkdir(parents=True, exist_ok=True)
    renderer: Any = ValidationResultsPageRenderer()
    view: Any = DefaultJinjaPageView()
    rows = []
    for page in pages:
        (folder / f"{page.name}.html").write_text(
            offline(view.render(renderer.render(page.result)), page.name), encoding="utf-8"
        )
        rows.append(_index_row(page))
    head = "<tr><th></th><th>suite</th><th class=number>rows</th><th>broken rules</th><th>about</th></tr>"
    said = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    index = folder / "index.html"
    body = f"<h1>{html.escape(title)}</h1>{said}<table>{head}{''.join(rows)}</table>"
    index.write_text(_page(title, body), encoding="utf-8")
    return index


def offline(page: str, title: str) -> str:
    """A page of Great Expectations without anything that a browser would fetch."""
    for pattern in _REMOVED:
        page = re.sub(pattern, "", page, flags=re.DOTALL)
    body = page[page.index("<body") : page.index("</body>")]
    body = body[body.index(">") + 1 :]
    # Links to missing pages: of the suite, and of other parts of a site.
    body = re.sub(r'<a href="(?:\.\./|https?:)[^"]*"[^>]*>(.*?)</a>', r"\1", body, flags=re.DOTALL)
    return _page(title, f'<p><a href="index.html">all suites</a></p><h1>{html.escape(title)}</h1>{body}')


def _index_row(page: SuitePage) -> str:
    mark = "<td class=broken>✗</td>" if page.broken else "<td class=holds>✓</td>"
    broken = "<br>".join(html.escape(f"{rule}: {count:,}") for rule, count in page.broken.items())
    name = html.escape(page.name)
    return (
        f'<tr>{mark}<td><a href="{name}.html">{name}</a></td><td class=number>{page.rows:,}</td>'
        f"<td>{broken}</td><td>{html.escape(page.about)}</td></tr>\n"
    )


def _page(title: str, body: str) -> str:
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{body}</body></html>\n"
    )
