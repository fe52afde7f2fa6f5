"""What the times in the messages of a test double's clients mean: `streaming.server.client_times`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.server.client_times import Whose, published
from tests.examples import examples

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
MACHINE = 1_700_000_000_123
MOVED = st.integers(-5 * MINUTE, 30 * DAY).filter(
    lambda moved: moved % SECOND not in (0, 1, *range(995, 1000))
)
"""How far the broker's clock is ahead of the machine's: by no whole seconds, since the machine's runs."""
DELAYS = st.builds(
    lambda count, unit: count * unit, st.integers(1, 90), st.sampled_from([SECOND, MINUTE, HOUR, DAY])
)


def delivered(
    at: int, now: int, whose: Whose = "either", *, is_held: bool = True, sent: int = MACHINE
) -> int:
    """When a message is due on the broker's clock, which shows `now`."""
    found = published({"publish_time": sent, "deliver_at_time": at}, now, whose, is_held=is_held)
    assert found["publish_time"] == now
    due: int = found["deliver_at_time"]
    return due


@settings(max_examples=examples(200))
@given(MOVED, DELAYS, st.integers(0, 1))
def test_a_time_of_the_brokers_clock_stays_as_it_is(moved: int, delay: int, rounded: int) -> None:
    now = MACHINE + moved
    assert delivered(now + delay - rounded, now) == now + delay - rounded


@settings(max_examples=examples(200))
@given(MOVED, DELAYS, st.integers(0, 5))
def test_a_delay_counts_from_the_brokers_clock(moved: int, delay: int, later: int) -> None:
    """However far the clock was moved: the client adds it to the machine's."""
    now = MACHINE + moved
    assert delivered(MACHINE - later + delay, now) == now + delay - later


@pytest.mark.parametrize(
    ("at", "now", "whose", "due"),
    [
        # the clocks differ by whole seconds by chance: the rounder delay wins
        (MACHINE + HOUR, MACHINE + 5 * SECOND, "either", MACHINE + 5 * SECOND + HOUR),
        (MACHINE + 5 * SECOND + HOUR, MACHINE + 5 * SECOND, "either", MACHINE + 5 * SECOND + HOUR),
        # as round from both, or from neither
        (MACHINE + HOUR, MACHINE + DAY, "either", MACHINE + DAY + HOUR),
        (MACHINE + 1234, MACHINE + 777, "either", MACHINE + 777 + 1234),
        # the past of the broker's clock, and now
        (MACHINE + 777, MACHINE + DAY + 777, "either", MACHINE + 777),
        (MACHINE + 777, MACHINE + 777, "either", MACHINE + 777),
        # said by the test
        (MACHINE + HOUR, MACHINE + 777, "broker", MACHINE + HOUR),
        (MACHINE + 777 + HOUR, MACHINE + 777, "client", MACHINE + 777 + HOUR + 777),
    ],
)  # fmt: skip
def test_the_clock_from_which_it_is_the_rounder_delay(at: int, now: int, whose: Whose, due: int) -> None:
    assert delivered(at, now, whose) == due


def test_a_clock_that_runs_has_gone_on_since_it_was_read() -> None:
    now = MACHINE + HOUR + 777
    assert delivered(now + MINUTE - 40, now, is_held=False) == now + MINUTE - 40
    assert delivered(now + MINUTE - 40, now) == now + MINUTE - 40 + HOUR + 777


def test_a_message_without_a_delivery_time_is_published_now() -> None:
    assert published({"publish_time": MACHINE, "event_time": 7}, 9) == {"publish_time": 9, "event_time": 7}
