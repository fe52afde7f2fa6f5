"""A mirror whose Kafka fails: it begins again where its log ends, as after any other end."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from streaming.kafka.client import KafkaUnreachable
from streaming.kafka.writer import KafkaFailed
from streaming.mirror.journal import MirrorLog
from streaming.mirror.mirror import ClusterMirror, MirrorTotals

AGAIN_SECONDS = 10.0
"""How long it waits before it begins again."""


def mirror_on(
    journal: MirrorLog,
    mirror: Callable[[], ClusterMirror],
    stop: Event,
    say: Callable[[str], None],
    begins: str,
) -> MirrorTotals:
    """Mirror until `stop` is set. While Kafka takes nothing, try again, and say why once. `begins`: what is said each time that it
    begins.

    `mirror` makes a mirror that writes `journal`. Raises what `journal` raises when it is entered for the first time, and what another
    attempt would not change: `NotWritten`, `BadLog`, OSError.
    """
    from kafka.errors import KafkaError

    entries = records = 0
    entered, told = False, ""
    while True:
        made = mirror()
        try:
            with journal:
                entered, told = True, ""
                say(begins)
                return _with(made.run(stop), entries, records)
        except (KafkaFailed, KafkaUnreachable, KafkaError) as error:
            if not entered or stop.is_set():
                raise
            why = error.reason if isinstance(error, KafkaFailed) else str(error)
            if why != told:
                say(f"{why}: trying again every {AGAIN_SECONDS:g} s")
            told = why
        done = _with(made.totals(), entries, records)
        if stop.wait(AGAIN_SECONDS):
            return done
        entries, records = done.entries, done.records


def _with(done: MirrorTotals, entries: int, records: int) -> MirrorTotals:
    """The totals, with the entries and records of earlier attempts."""
    return done._replace(entries=done.entries + entries, records=done.records + records)
