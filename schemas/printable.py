"""What a terminal or a log shows of texts that come from outside: it obeys none of them, and no name in them forges a line. And numbers
in words."""

import shlex
from collections.abc import Collection
from itertools import islice
from traceback import format_exception


def printable(text: str, keep: str = "\n") -> str:
    """A text with escapes in place of what a terminal would obey, but for the characters to `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """A text on one line, of which a terminal obeys nothing: no name in it can end the line, and begin another one."""
    return printable(text, keep="")


def quoted(name: str) -> str:
    """A name as a word of a command for a shell (bash or zsh), on one line."""
    if name.isprintable():
        return shlex.quote(name)
    escaped = "".join(f"\\{c}" if c in "\\'" else c if c.isprintable() else f"\\U{ord(c):08x}" for c in name)
    return f"$'{escaped}'"


def counted(number: int, noun: str, verb: str = "") -> str:
    """A number with its noun: 1 record, 2,000 entries, 3 micro-batches. With a verb: 1 entry waits."""
    one = number == 1
    if not one:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}{'es' if noun.endswith('ch') else 's'}"
    if verb:
        verb = f" {verb}" if not one else f" {verb}s"
    return f"{number:,} {noun}{verb}"


def some_of(names: Collection[str], most: int) -> str:
    """The first names, `most` at most, and how many more there are: a, b and 3 more."""
    more = len(names) - most
    return ", ".join(islice(names, most)) + (f" and {more:,} more" if more > 0 else "")


def traceback_text(error: BaseException) -> str:
    """The traceback of an error. Its lines after the first are indented, so that no name in them begins one."""
    return printable("".join(format_exception(error)).rstrip("\n")).replace("\n", "\n  ")
