"""What came out of random lives when they were last recorded. ``python -m tests.broker.recorded_lives`` records them.

A change of the broker's behaviour changes these lives. Run the command then: it shows for each life the first record that
has other rows now. Look at them, and commit the file with the change.
"""

import base64
import json
import zlib
from pathlib import Path

import msgspec

from schemas.effects import KINDS, Row
from tests.broker.random_lives import THEMES, Life, live

FILE = Path(__file__).parents[1] / "golden" / "random_lives.json"
SEEDS = range(12)
"""The lives of each theme."""

NAMES = [(theme, seed) for theme in THEMES for seed in SEEDS]
WITHOUT_PAYLOADS = [each for each in NAMES if not each[0].startswith(("compaction", "transactions"))]
"""What a fold without payloads can fold, such as those of what-if and canaries, which refuse transactions, too."""


def checksums(life: Life) -> str:
    """A checksum of all rows, of the stats and of the work, then a byte for each record and its rows, which shows where
    lives differ."""
    log, rows, stats, work = life
    sums = [
        zlib.crc32(value) ^ zlib.crc32(msgspec.msgpack.encode(out))
        for (*_, value), out in zip(log, rows, strict=True)
    ]
    whole = zlib.crc32(msgspec.msgpack.encode((sums, stats, sorted(work.items()))))
    return f"{whole:08x} {base64.b64encode(bytes(each & 255 for each in sums)).decode()}"


def recorded() -> dict[str, str]:
    """`checksums` by theme and seed."""
    found: dict[str, str] = json.loads(FILE.read_text())
    return found


def difference(life: Life, expected: str) -> str:
    """The first record that has other rows than recorded, and its rows now."""
    log, rows, stats, work = life
    now, then = (base64.b64decode(each.partition(" ")[2]) for each in (checksums(life), expected))
    at = next((at for at, (a, b) in enumerate(zip(now, then, strict=False)) if a != b), None)
    if at is None:
        return f"the same rows, but other work ({work}) or other stats: {stats}"
    timestamp, topic, value = log[at]
    shown = [f"record {at} of {len(log)} at {timestamp}, {topic}: {value.decode()}", *map(_shown, rows[at])]
    return "\n  ".join(shown)


def _shown(row: Row) -> str:
    return f"{row.clock} {KINDS[type(row.effect)]} {tuple(row.effect)}"


def main() -> None:
    before = recorded() if FILE.exists() else {}
    after, changed = {}, 0
    for theme, seed in NAMES:
        name, life = f"{theme} {seed}", live(theme, seed)
        after[name] = checksums(life)
        if name in before and before[name] != after[name]:
            changed += 1
            print(f"{name}: {difference(life, before[name])}")
    FILE.write_text(json.dumps(after, indent=0) + "\n")
    print(f"{changed} of {len(after)} lives differ")


if __name__ == "__main__":
    main()
