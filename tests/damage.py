"""What reads a file notices any damage to it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def accepted(
    path: Path,
    damages: Iterable[tuple[str, bytes]],
    look: Callable[[], Any],
    refused: type[Exception] | tuple[type[Exception], ...],
    is_right: Callable[[str, Any], bool],
) -> list[str]:
    """The `damages` to a file, each with its name, that `look` does not refuse, although what it finds is not right."""
    found = []
    for what, damaged in damages:
        path.write_bytes(damaged)
        try:
            seen = look()
        except refused:
            continue
        if not is_right(what, seen):
            found.append(what)
    return found
