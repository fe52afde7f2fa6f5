"""The process that `bench.steps` measures: ``RESULT ARGUMENTS…`` runs `magnetar` and counts the calls of its main thread.

From SIGUSR1 to SIGUSR2 for `serve`, else all of them. The sources are those of PYTHONPATH, also of an earlier version.
"""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOMS = ("schemas", "sinks", "streaming")


def main(result: Path) -> None:
    """Write the calls as (file, line, name of the function, count)."""
    seen = Counter[tuple[str, int, str]]()
    root = os.environ["PYTHONPATH"] + "/"
    rooms = tuple(root + each for each in ROOMS)

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            seen[code.co_filename, code.co_firstlineno, code.co_name] += 1

    def begin(*_: object) -> None:
        seen.clear()
        sys.setprofile(profile)

    def end(*_: object) -> None:
        sys.setprofile(None)
        found = [
            (file.removeprefix(root), line, name, count)
            for (file, line, name), count in seen.items()
            if file.startswith(rooms)
        ]
        part = result.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(result)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    from streaming.cli import main

    if sys.argv[1] != "serve":
        begin()
    try:
        main()
    finally:
        end()


if __name__ == "__main__":
    _, file, *rest = sys.argv
    sys.argv[1:] = rest
    main(Path(file))
