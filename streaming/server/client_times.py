"""Times in the messages of a test double's clients: what they mean on the broker's clock, which the test moves.

There is one clock, the broker's. Every absolute time is on it: those of seeks, of cursors that are reset, of calls of the admin API, and
of `deliverAt`. So these stay as they are. A message is published when the broker gets it, so its publish time is the broker's.

`deliverAfter` is the exception that needs care. A client adds the delay to the clock of its machine, and sends the sum in the field of
`deliverAt`. Nothing in the frame says which of the two it was, but a test's delays are round: it asks for 90 seconds or for 7 days, and the
two clocks differ by an odd number of milliseconds. So the time counts from the clock from which it is the rounder delay, and from the
client's if it is as round from both. `Whose` lets a test say it instead.
"""

from typing import Any, Literal

Whose = Literal["either", "broker", "client"]
"""The clock of delivery times. either: as above. broker: absolute times are all that clients send. client: delays are."""

_UNITS = (86_400_000, 3_600_000, 60_000, 1000)
_SENT_AFTER = 5
"""A client may take so many ms from adding a delay to its time until it publishes the message."""
_ROUNDED = 1
"""So many ms an application may lose that counts in seconds, as floating-point numbers."""
_TOLD_BEFORE = 50
"""So many ms ago an application may have been told the time of a clock that runs."""
_LAST = 2**63 - 1


def published(
    metadata: dict[str, Any], now: int, whose: Whose = "either", *, is_held: bool = True
) -> dict[str, Any]:
    """The metadata of a message that a broker gets `now` (ms), whose clock `is_held`. Times stay within 64 bits; a message whose own
    time does not is left to the gate, which refuses it."""
    sent = metadata["publish_time"]
    if sent > _LAST:
        return metadata
    found = {**metadata, "publish_time": now}
    if (at := metadata.get("deliver_at_time")) is not None:
        if whose == "either":
            of_broker = _roundness(at - now, _ROUNDED if is_held else _TOLD_BEFORE)
            whose = "broker" if of_broker > _roundness(at - sent, _SENT_AFTER) else "client"
        if whose == "client":
            found["deliver_at_time"] = min(max(at - sent + now, -_LAST - 1), _LAST)
    return found


def _roundness(delay: int, short: int) -> int:
    """The largest unit of which a delay (ms) is a multiple, up to so many ms `short`; 0: it is not even whole seconds."""
    return next((unit for unit in _UNITS if -delay % unit <= short), 0)
