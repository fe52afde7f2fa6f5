"""`python -m tests.fuzz.frames`: the property tests of a server's sockets, with new examples each time, for as long as it is told to.

Exits with 1 at the first failure. Its example is in what pytest prints, and Hypothesis keeps it for the next run of the tests.
"""

import argparse
import random
import time

import pytest

TESTS = "tests/server/test_fuzz.py"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.frames", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default: 10)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the first round")
    given = parser.parse_args()
    began = time.monotonic()
    seed: int = given.seed
    while (minutes := (time.monotonic() - began) / 60) < given.minutes:
        if pytest.main([TESTS, "-q", "--no-header", f"--hypothesis-seed={seed}"]) != 0:
            print(f"failed in the round with --hypothesis-seed={seed}")
            return 1
        print(f"{minutes:.1f} min, seed {seed}: nothing found", flush=True)
        seed += 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
