"""``python -m tests.state.record``: notes the state's shape as that of `codec.VERSION`, unless that is released.

With ``--release`` a version is about to be: what its states and checkpoints look like is kept for all later ones, in
``tests/golden/<version of the project>``.

With ``--mended <release>`` an error that this release has was mended: what follows on its states is written again. What
is different then is printed: look at every line.
"""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from msgspec import json

from streaming.broker.codec import VERSION
from streaming.spark.session import spark_session
from tests.state import checkpoint, golden
from tests.state.lives import lives
from tests.state.shape import changes, shape


def main(arguments: list[str]) -> str:
    """What was done, in a sentence. Raises `SystemExit` if it may not be."""
    match arguments:
        case ["--mended", release]:
            folder = golden.GOLDEN / release
            anew, difference = golden.mended(golden.read(folder))
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
        return f"{golden.SHAPES / str(VERSION)}.json describes the state as it is"
    release = version("magnetar")
    folder = golden.GOLDEN / release
    if folder.exists():
        raise SystemExit(f"{folder} is there: a release is recorded once. Name a new one in pyproject.toml")
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
