"""What a broker and its twin show while there is traffic, and whether the one explains the other."""

import re
import threading
import time
import urllib.request
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from streaming.mirror.observation import ledgers_of
from streaming.record.rest import CallFailed, Rest
from tests.mirror.traffic import At, Traffic

EVERY = 2.0
"""The mirror's interval and the query's trigger, in seconds."""

SAMPLE_SECONDS = 2.0

SHORT_SECONDS = 60.0

CHECK_SECONDS = 60 + 2 * EVERY
"""The interval of the broker's slowest check, with a look before and after it."""


class Sample(NamedTuple):
    """What the broker showed at `time` (s): the backlog of a subscription, or the number of entries."""

    time: float
    entries: int


class Shown(NamedTuple):
    """The backlog that the twin showed of a subscription at `time`, as the mirror's look at `since` had it (s)."""

    time: float
    since: float
    topic: str
    subscription: str
    backlog: int


class Judged(NamedTuple):
    """Of the twin's backlogs during traffic: how far they were from the broker's of the same moment, how old they were (s), how many can
    only be explained by a check of the broker that came later, and which can't be explained."""

    compared: int
    largest: int
    lags: list[float]
    ahead: int
    beyond: list[str]


class Watch(threading.Thread):
    """Samples of the broker and of the twin while there is traffic."""

    def __init__(self, traffic: Traffic, metrics: int) -> None:
        super().__init__(daemon=True)
        self.ledgers: dict[str, dict[int, int]] = defaultdict(dict)
        """By topic: how many entries the broker showed of each ledger when it was last seen."""
        self.closed: dict[str, dict[int, int]] = defaultdict(dict)
        """Those that had ended."""
        self.gone: dict[str, dict[int, float]] = defaultdict(dict)
        """When ledgers had been deleted (s)."""
        self.written: dict[str, list[Sample]] = defaultdict(list)
        """By topic: how many entries there have been so far, also those of clients without receipts."""
        self.stored: dict[str, list[Sample]] = defaultdict(list)
        """By topic: how many entries the broker had."""
        self.backlogs: dict[tuple[str, str], list[Sample]] = defaultdict(list)
        """By topic and subscription."""
        self.shown: list[Shown] = []
        self.stop = threading.Event()
        self.failed: BaseException | None = None
        self._traffic, self._metrics, self._rest = traffic, metrics, Rest(traffic.admin_url)

    def run(self) -> None:
        try:
            while not self.stop.wait(SAMPLE_SECONDS):
                with suppress(CallFailed):  # what is being unloaded
                    self.look()
                with suppress(OSError):  # the query was killed
                    self._look_at_twin()
        except BaseException as error:
            self.failed = error

    def look(self) -> None:
        """Ask the broker. Raises `CallFailed`."""
        for topic in self._traffic.topics:
            path = "/" + topic.replace("://", "/")
            internal = self._rest.get(f"{path}/internalStats")
            seen = self._rest.get(f"{path}/stats?getPreciseBacklog=true")["subscriptions"]
            now, found = time.time(), {id_: entries for id_, (entries, _) in ledgers_of(internal).items()}
            self.ledgers[topic] |= found
            self.written[topic].append(Sample(now, sum(self.ledgers[topic].values())))
            self.stored[topic].append(Sample(now, sum(found.values())))
            for id_ in self.ledgers[topic].keys() - found.keys():
                self.gone[topic].setdefault(id_, now)
            self.closed[topic] |= {id_: entries for id_, entries in found.items() if id_ != max(found)}
            for name, each in seen.items():
                if each.get("isDurable", True):  # not the mirror's readers
                    self.backlogs[topic, name].append(Sample(now, each["msgBacklog"]))

    def _look_at_twin(self) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics", timeout=5) as page:
            text, now = page.read().decode(), time.time()
        seen = {
            labels["topic"]: value
            for labels, value in _metric(text, "magnetar_mirror_source_seen_timestamp_seconds")
        }
        for labels, value in _metric(text, "pulsar_subscription_back_log"):
            if since := seen.get(labels["topic"]):
                self.shown.append(Shown(now, since, labels["topic"], labels["subscription"], int(value)))

    def save(self, path: Path) -> None:
        """Write what was seen as JSON, for whoever looks for the cause of a difference."""
        seen = {"backlogs": [*self.backlogs.items()], "written": self.written, "twin": self.shown}
        path.write_bytes(msgspec.json.encode(seen))

    def short_lived(self, receipts: Mapping[str, Mapping[At, float]]) -> dict[str, set[int]]:
        """By topic: ledgers that the broker deleted within `SHORT_SECONDS` of their last receipt. A mirror that is killed, or waits for a topic
        that is being unloaded, may find them gone, with all their entries."""
        found: dict[str, set[int]] = {}
        for topic, gone in self.gone.items():
            last = dict[int, float]()
            for (ledger, _), at in receipts.get(topic, {}).items():
                last[ledger] = max(at, last.get(ledger, 0.0))
            found[topic] = {
                ledger for ledger, at in gone.items() if at - last.get(ledger, 0.0) < SHORT_SECONDS
            }
        return found

    def judged(self, sought: Mapping[tuple[str, str], list[tuple[float, float]]]) -> Judged:
        """Compare the twin's backlogs with those that the broker had from a look of the mirror before the twin's time until the twin showed
        them, with the entries that came meanwhile: they come before the look that says who has acknowledged them.

        The twin's own checks may have been ahead of the broker's, but not by more than `CHECK_SECONDS`. What a seek brought back may have
        been acknowledged again before the broker's next sample: where one was `sought`, the backlog may have been all that was stored.
        """
        times = {key: [each.time for each in samples] for key, samples in self.backlogs.items()}
        count = largest = ahead = 0
        lags, beyond = [], []
        for each in self.shown:
            key, begin = (each.topic, each.subscription), each.since - EVERY - SAMPLE_SECONDS
            samples, at = self.backlogs.get(key, []), bisect_right(times.get(key, []), each.time)
            first = max(bisect_left(times.get(key, []), begin) - 1, 0)
            between = [sample.entries for sample in samples[first:at]]
            if not between or samples[at - 1].time < begin:  # it came or went meanwhile
                continue
            written = self.written[each.topic]
            count += 1
            lags.append(each.time - each.since)
            largest = max(largest, abs(each.backlog - between[-1]))
            start = min(begin, samples[first].time)
            some = _grown(written, start, each.time)
            most = max(between)
            if any(since <= each.time and start <= to for since, to in sought.get(key, ())):
                stored = self.stored[each.topic]
                begun = bisect_left(stored, start, key=_time)
                most = max(
                    sample.entries for sample in stored[begun : bisect_right(stored, each.time, key=_time)]
                )
            if min(between) - some <= each.backlog <= most + some:
                continue
            later = samples[at : bisect_right(times[key], each.time + CHECK_SECONDS)]
            if any(
                sample.entries - _grown(written, each.time, sample.time) <= each.backlog for sample in later
            ) and each.backlog < max(between):
                ahead += 1
                continue
            beyond.append(
                f"{each.topic}, {each.subscription}: {each.backlog} at {each.time:.0f}, and the broker {min(between)} to {max(between)} in the "
                f"{each.time - begin:.0f} s before, in which {some} entries came"
            )
        return Judged(count, largest, lags, ahead, beyond)


def _grown(samples: list[Sample], since: float, to: float) -> int:
    """By how many entries at most the broker's number grew."""
    first = max(bisect_right(samples, since, key=_time) - 1, 0)
    last = min(bisect_left(samples, to, key=_time), len(samples) - 1)
    return samples[last].entries - samples[first].entries


def _time(sample: Sample) -> float:
    return sample.time


def _metric(page: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    for line in page.splitlines():
        if line.startswith(f"{name}{{"):
            labels, _, value = line.removeprefix(name).rpartition(" ")
            yield dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)
