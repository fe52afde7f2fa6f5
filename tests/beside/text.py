"""Answers without what differs from broker to broker: ids, times, rates and addresses, and the order of what has none."""

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.beside.sides import Side

_TEXTS = [
    (re.compile(pattern, re.M), text)
    for pattern, text in (
        (r"^\$ .*\n|^=> |^Exit code is .*\n", ""),
        (r"/127\.0\.0\.1:\d+", "/CLIENT"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,:\d]*(Z|[+-]\d\d:?\d\d)?", "TIME"),
        (r"\b1[6-9]\d{11}\b", "TIME"),
        (r"\b\d+:(-?\d+)\b", r"LEDGER:\1"),
        (r"\n* --- An unexpected error .*\n+", ""),
        (r'HTTP \d+ \{\n"servlet":.*\n"message":"(.*)",\n"url":.*\n"status":.*\n\}', r"\1"),
        (r"&quot;", '"'),
        (r"^(Reason: )?Message: ", r"\1"),
        (r"\n*^Stacktrace:\n(?:(?!Reason: |-?\d+$).*\n?)*", "\n"),
        (r"^.* io\.netty\.util\.HashedWheelTimer.*\n(SEVERE|WARNING): .*\n(java\..*\n(\tat .*\n)*)?", ""),
        (r"\\n\\nStacktrace:.*?(?=\"$)", ""),
    )
]
_RATE = re.compile(r".*([rR]ate|Throughput|averageMsgSize).*")
_NUMBERS = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r".*(Timestamp|TimeStamp|Time|Times|InBacklogs?|Since|AgeSeconds)", "TIME"),
        (r"(\w*[lL]edgerId|currentLedgerEntries|currentLedgerSize|cursorLedger\w*)", "LEDGER"),
        (r"(connectedSince|producerId|uptime|entriesAddedCounter)", "NUMBER"),
    )
]
"""Names of fields with numbers, and what stands for one above 0."""
_LIST = re.compile(r"\[([\w-]+(?:, [\w-]+)+)\]")
_ENTRY = re.compile(r"\S+(    .*)?")


def comparable(text: str, side: "Side", without: frozenset[str]) -> list[str]:
    """The lines of an answer of a broker, `without` some fields."""
    for address, name in ((side.broker, "ADMIN"), (side.service, "SERVICE")):
        text = text.replace(address, name)
    begin = re.search(r"^[\[{]", text, re.M)
    if begin is not None:
        try:
            value, end = json.JSONDecoder().raw_decode(text, begin.start())
        except ValueError:
            pass
        else:
            shown = json.dumps(_alike("", value, without), indent=1, sort_keys=True)
            text = f"{text[: begin.start()]}{shown}{text[end:]}"
    text = _text_alike(text)
    text = _LIST.sub(lambda found: f"[{', '.join(sorted(found[1].split(', ')))}]", text)
    lines = [line for line in text.splitlines() if line]
    return sorted(lines) if all(map(_ENTRY.fullmatch, lines)) else lines


def _text_alike(text: str) -> str:
    for pattern, other in _TEXTS:
        text = pattern.sub(other, text)
    return text


def _alike(name: str, value: Any, without: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _alike(key, each, without) for key, each in value.items() if key not in without}
    if isinstance(value, list):
        return sorted((_alike("", each, without) for each in value), key=json.dumps)
    if isinstance(value, str):
        return _text_alike(value).strip()
    if isinstance(value, int | float) and _RATE.fullmatch(name):
        return "RATE"
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return next((other for pattern, other in _NUMBERS if pattern.fullmatch(name)), value)
    return value
