"""``python -m tests.state.record``: records the shape of the state for `codec.VERSION`, unless that is released.

Use ``--release`` before a release: it stores states and checkpoints for all later versions, in
``tests/golden/<version of the project>``.

Use ``--fixed <release>`` after fixing a bug of that release: it records the outcome of its states again and prints the
differences. Check every line.
"""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from msgspec import json

from streaming.broker.state.codec import VERSION
from streaming.spark.session import spark_session
from tests.state import checkpoint, golden
from tests.state.lives import lives
from tests.state.shape import changes, shape


def main(arguments: list[str]) -> str:
    """Record, and return a sentence about it. Raises `SystemExit` if that is not allowed."""
    match arguments:
        case ["--fixed", release]:
            folder = golden.GOLDEN / release
            anew, difference = golden.fixed(golden.read(folder))
            golden.write(anew, folder)
            return "\n".join([*difference, f"{folder}: {len(difference)} rows are different"])
    if arguments not in ([], ["--release"]):
        raise SystemExit(__doc__)
    if difference := changes(golden.shape_of(VERSION), shape()):
        if released := golden.releases().get(VERSION):
            raise SystemExit(f"version {VERSION} is released ({released}): {golden.next_version(difference)}")
        file = golden.SHAPES / f"{VERSION}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(json.format(json.encode(shape()), indent=1) + b"\n")
    if not arguments:
        return f"{golden.SHAPES / str(VERSION)}.json describes the current state"
    release = version("magnetar")
    folder = golden.GOLDEN / release
    if folder.exists():
        raise SystemExit(f"{folder} exists: a release is recorded once. Set a new version in pyproject.toml")
    folder.mkdir()
    golden.write(
        golden.Golden(release, VERSION, {name: golden.record(life) for name, life in lives().items()}), folder
    )
    session = spark_session("magnetar golden", master="local[2]", shuffle_partitions=checkpoint.PARTITIONS)
    with tempfile.TemporaryDirectory() as work:
        checkpoint.record(session, Path(work))
        checkpoint.pack(Path(work), folder / checkpoint.ARCHIVE)
    session.stop()
    return f"{folder} holds what {release} leaves behind"


if __name__ == "__main__":
    print(main(sys.argv[1:]))
