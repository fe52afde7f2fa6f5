"""How many examples property tests draw."""

import os

SHARE = float(os.environ.get("MAGNETAR_EXAMPLES", "0.5"))
"""Of the number that a test names: half for each change, many times as many at night (``make nightly``)."""


def examples(count: int) -> int:
    """The examples of a test, for which `count` is enough to find most faults."""
    return max(1, round(SHARE * count))
