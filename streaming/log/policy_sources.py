"""What ``--policies`` names: files that together are one set of policies.

A file may stand by itself, or after what it is about: ``public/default=dump.json``, ``persistent://public/default/orders=topic.json``.
Commas join the files of a set. A path that exists is taken as it is, whatever is in its name.
"""

from pathlib import Path
from typing import NamedTuple


class PolicySource(NamedTuple):
    """A file, and the namespace or topic that it is about, if that was given."""

    about: str | None
    path: Path


def policy_sources(text: str | Path) -> list[PolicySource]:
    """The files that a text names."""
    whole = str(text)
    parts = [whole] if _exists(whole) else [part for part in whole.split(",") if part]
    return [_source(part) for part in parts] or [PolicySource(None, Path(whole))]


def name_of(text: str | Path) -> str:
    """A name for the set: those of its files, without their endings."""
    return "+".join(Path(path.name.removesuffix(".gz")).stem for _, path in policy_sources(text))


def _source(part: str) -> PolicySource:
    about, sign, path = part.partition("=")
    if not sign or not about or not path or _exists(part):
        return PolicySource(None, Path(part))
    return PolicySource(about, Path(path))


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # no path: too long, or with a character that none has
        return False
