"""The interval of a trigger. Without pyspark, so that a wrong one is refused before pyspark is imported."""

import re

LONGEST_HOURS = 24

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_IN_HOUR = {"milliseconds": 3_600_000, "seconds": 3_600, "minutes": 60, "hours": 1}
_INTERVAL = re.compile(r" *([0-9]{1,18}) *([a-z]+) *")


class BadTrigger(ValueError):
    """The text is not an interval."""


def seconds(text: str) -> float:
    """A trigger's interval in seconds. Raises `BadTrigger`."""
    count, unit = interval(text).split()
    return 3600 * int(count) / _IN_HOUR[unit]


def interval(text: str) -> str:
    """A trigger's interval in Spark's syntax: ``1s`` → ``1 seconds``. Raises `BadTrigger`."""
    found = _INTERVAL.fullmatch(text)
    unit = "" if found is None else _UNITS.get(found[2], found[2])
    if found is None or unit not in _IN_HOUR:
        raise BadTrigger(f"trigger {text!r}: expected a number and a unit, such as 500ms, 1s or 2m")
    if int(found[1]) > LONGEST_HOURS * _IN_HOUR[unit]:
        raise BadTrigger(f"trigger {text!r}: the longest is {LONGEST_HOURS}h")
    return f"{int(found[1])} {unit}"
