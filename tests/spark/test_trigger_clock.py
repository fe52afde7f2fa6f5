"""No micro-batch folds while the machine's clock is far ahead."""

import threading

import pytest

from streaming.metrics.endpoint import application
from streaming.metrics.query import QueryMetrics
from streaming.runtime.clock import MAX_AHEAD_MS, RealClock
from streaming.spark import trigger
from streaming.spark.trigger import ClockJumped, SetBack, TriggerClock

DAY_NS = 24 * 3_600_000_000_000


class Machine:
    """A clock that somebody sets, and one that nobody sets, in ns."""

    def __init__(self) -> None:
        self.shown = self.running = DAY_NS

    def pass_by(self, ns: int) -> None:
        self.shown += ns
        self.running += ns


def test_a_jump_is_waited_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, metrics, ready = Machine(), QueryMetrics(), []
    clock = RealClock(machine=lambda: machine.shown, running=lambda: machine.running)

    def tell(read: RealClock) -> None:
        metrics.clock(read.machine_ahead / 1000, read.is_followed)
        ready.append(not metrics.waits_for_clock)
        if len(ready) == 4:
            machine.shown = machine.running  # set right

    watch = TriggerClock(clock, threading.Event(), tell)
    monkeypatch.setattr(trigger, "_AGAIN_SECONDS", 0.0)
    for _ in range(2):  # a day passes, or a machine sleeps for one
        machine.pass_by(DAY_NS)
        watch.check()
    machine.shown += MAX_AHEAD_MS * 1_000_000
    with pytest.raises(ClockJumped, match="is back"):
        watch.check()
    assert ready == [True, True, False, False, True]
    watch.check()
    machine.shown += MAX_AHEAD_MS * 1_000_000 - 1  # as far as a record may be ahead
    watch.check()


def test_a_query_that_waits_can_be_stopped_and_is_not_ready() -> None:
    machine, metrics, stop = Machine(), QueryMetrics(), threading.Event()
    clock = RealClock(machine=lambda: machine.shown, running=lambda: machine.running)
    machine.shown += DAY_NS
    stop.set()
    with pytest.raises(ClockJumped, match="^stopped while the machine's clock is 86,400 s ahead"):
        TriggerClock(
            clock, stop, lambda read: metrics.clock(read.machine_ahead / 1000, read.is_followed)
        ).check()
    said: list[str] = []
    environ = {"PATH_INFO": "/readyz", "REQUEST_METHOD": "GET"}
    body = b"".join(application(metrics)(environ, lambda status, headers: said.append(status)))
    assert said == ["503 Service Unavailable"]
    assert b"clock jumped ahead" in body


@pytest.mark.parametrize(("trigger", "most"), [("1s", 60), ("2m", 120), ("0ms", None)])
def test_a_clock_that_is_set_back_ends_the_query_and_small_steps_do_not(
    trigger: str, most: int | None
) -> None:
    """Spark waits for the time of the next micro-batch, by the machine's clock."""
    machine = Machine()
    watch = SetBack(trigger, machine=lambda: machine.shown, running=lambda: machine.running)
    for _ in range(100):  # as when it is corrected now and then
        machine.pass_by(1_000_000_000)
        machine.shown -= 59_000_000_000
        watch.check()
    machine.shown += 2 * DAY_NS
    watch.check()
    machine.pass_by(DAY_NS)  # a machine that sleeps
    watch.check()
    machine.shown -= (most or 86_400) * 1_000_000_000
    if most is None:
        watch.check()
        return
    with pytest.raises(ClockJumped, match=f"set back by {most} s.* start the query again"):
        watch.check()
    watch.check()
