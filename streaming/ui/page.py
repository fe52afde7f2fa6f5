"""The page: one file of HTML with its style sheet and its script, which a browser may run and no others."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from streaming.answers.whatif.page import STYLE

_PARTS = files("streaming.ui")
_SCRIPT = _PARTS.joinpath("page.js").read_text(encoding="utf-8")
_STYLE = STYLE + _PARTS.joinpath("page.css").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy: the page loads nothing, runs only its own script, and asks only the server that it came from."""

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""That of a report: it has no script, and its texts are escaped."""


def page() -> str:
    """The page as HTML."""
    html = _PARTS.joinpath("page.html").read_text(encoding="utf-8")
    return html.replace("/* style */", _STYLE).replace("/* script */", _SCRIPT)
