"""`python -m tests.beside`: every sub-command of `pulsar-admin`, and admin calls that it can't make, on a real Pulsar and on `magnetar serve`.

`commands.txt` has the calls in their order. The answers are compared but for ids, times, rates and addresses. What differs must be in
`differences.toml`, with the reason: the exit status is 1 for any other difference, and for one listed there that is gone.
"""

import argparse
import difflib
import re
import sys
import tempfile
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from streaming.runtime.jars import JarsUnavailableError
from tests.beside.sides import SCHEMAS, Side, magnetar, pulsar, side
from tests.beside.text import comparable
from tests.parity.pulsar import VERSION, PulsarError

_HERE = Path(__file__).parent


def main() -> int:
    """Compare. The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.beside", description=__doc__)
    parser.add_argument("--pulsar", default=VERSION, metavar="VERSION", help=f"(default: {VERSION})")
    parser.add_argument("--commands", type=Path, default=_HERE / "commands.txt", help="other calls than ours")
    given = parser.parse_args()
    calls = [line for line in given.commands.read_text().splitlines() if line and not line.startswith("#")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, text in SCHEMAS.items():
            (folder / name).write_text(text)
        try:
            brokers = {"real": pulsar(folder, given.pulsar), "magnetar": magnetar(folder)}
            sides = [
                stack.enter_context(side(folder / f"{name}.conf", stack.enter_context(broker)))
                for name, broker in brokers.items()
            ]
        except (PulsarError, JarsUnavailableError) as error:
            print(error, file=sys.stderr)
            return 2
        return _judged(calls, folder, *sides)


def _difference(call: str, folder: Path, there: Side, here: Side) -> str:
    """How the answers to a call differ; empty: not at all, or it is none."""

    def said(side: Side) -> list[str]:
        filled = call.replace("{broker}", side.broker)
        for name in SCHEMAS:
            filled = filled.replace(f"{{{name}}}", str(folder / name))
        return comparable(side.answer(filled), side, _FIELDS)

    with ThreadPoolExecutor() as both:
        real, ours = both.map(said, (there, here))
    if "<html>" in real:  # a page for people
        real, ours = real[:1], ours[:1]
    return "\n".join(difflib.unified_diff(real, ours, "Pulsar", "Magnetar", n=1, lineterm=""))


_LISTED = tomllib.loads((_HERE / "differences.toml").read_text())
_FIELDS = frozenset(name for each in _LISTED["fields"] for name in each["names"])


def _judged(calls: list[str], folder: Path, there: Side, here: Side) -> int:
    known = _LISTED["calls"]
    counts: Counter[str] = Counter()
    asked = alike = unknown = 0
    for call in calls:
        difference = _difference(call, folder, there, here)
        asked += not call.startswith(">")
        if not difference:
            alike += not call.startswith(">")
        elif reason := next((each["reason"] for each in known if re.fullmatch(each["call"], call)), None):
            counts[reason] += 1
        else:
            unknown += 1
            print(f"{call}\n{difference}\n", flush=True)
    gone = [each for each in known if not counts[each["reason"]]]
    for each in gone:
        print(f"{each['call']}: no difference any more: {each['reason']}")
    print(f"{alike} of {asked} calls are answered alike")
    for reason, count in counts.most_common():
        print(f"{count} differ: {reason}")
    return bool(unknown or gone)


if __name__ == "__main__":
    sys.exit(main())
