"""What commands tell about the files of policies that they read."""

from __future__ import annotations

from collections.abc import Iterable

from streaming.cli.console import say


def say_notes(policies: Iterable[str]) -> None:
    """Says, once for each file, how much of it is applied. Raises `LogError` and `FileNotFoundError`."""
    from streaming.log.policies import policy_notes

    told: set[str] = set()
    for each in policies:
        for note in policy_notes(each):
            if note not in told:
                say(note, err=True)
            told.add(note)
