"""Does Magnetar do what a real Pulsar broker did? Compares recorded traces frame by frame, snapshot by snapshot."""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from streaming.traces.session import Session
from streaming.traces.trace import Trace, read_trace, trace_files
from streaming.traces.ungated import session_of

KNOWN_GAPS = Path(__file__).with_name("known_gaps.txt")
"""One line per trace that is known to differ: ``scenario: reason``."""


class TraceComparison(NamedTuple):
    """The result for one trace: how many frames and snapshots were compared, and each difference as (step, text), in order.

    `explained`: what differs in a trace that is not gated for a reason that is not Magnetar's, see
    `streaming.traces.ungated`: how often, by reason. `stand_in`: see `streaming.broker.config.stand_in`.
    """

    name: str
    frames: int
    snapshots: int
    differences: list[tuple[str, str]]
    explained: Mapping[str, int] = {}
    stand_in: str | None = None

    @property
    def equal(self) -> bool:
        """Whether there are no differences."""
        return not self.differences


def compare_traces(
    paths: Iterable[Path], progress: Callable[[TraceComparison], None] | None = None
) -> list[TraceComparison]:
    """Compare the traces in `paths` (files or folders). Raises `TraceError`."""
    verdicts = []
    for path in trace_files(paths):
        verdict = compare_trace(read_trace(path))
        if progress is not None:
            progress(verdict)
        verdicts.append(verdict)
    return verdicts


def compare_trace(trace: Trace) -> TraceComparison:
    """Feed a trace to the core and compare at every step and snapshot."""
    return compare(session_of(trace))


def compare(session: Session) -> TraceComparison:
    """Run a session and compare at every step and snapshot."""
    frames = snapshots = 0
    snapshot: dict[str, Any] | None = None
    following: str | None = None
    run = session.run()
    while True:
        try:
            record, command = next(run)
        except StopIteration:
            break
        except Exception as error:  # a bug in Magnetar is a difference, not the end of the comparison
            session.differ(f"Magnetar failed: {type(error).__name__}: {error}")
            break
        if command is None and record is not None:
            # the previous record is done: its commands, including a tick, have been folded
            if snapshot is not None:
                _compare_snapshot(session, snapshot)
            if following is not None:
                session.end_step(following)
            frames += record["dir"] == "out"
            snapshots += record["dir"] == "stats"
            snapshot = record if record["dir"] == "stats" else None
            following = record.get("step") if record["dir"] == "note" else session.step if snapshot else None
    if snapshot is not None:
        _compare_snapshot(session, snapshot)
    session.end_step("end")
    return TraceComparison(
        session.trace.name, frames, snapshots, session.differences, session.explained, session.stand_in
    )


def _compare_snapshot(session: Session, record: dict[str, Any]) -> None:
    topic = record["topic"]
    try:
        ours = session.broker.topic_stats(topic)
    except KeyError:
        if record.get("stats", {}).get("error") != HTTPStatus.NOT_FOUND:
            session.differ(f"snapshot of {topic}: Magnetar has no such topic")
        return
    for part in ("internal", "stats"):
        if part not in record:
            continue
        try:
            recorded = _ordered(record[part])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            session.differ(f"snapshot of {topic}: its {part} are malformed: {type(error).__name__}: {error}")
            continue
        found = session.normaliser.difference(topic, recorded, _ordered(ours[part]), part)
        if found is not None:
            session.differ(found)


def _ordered(stats: dict[str, Any]) -> dict[str, Any]:
    """`stats` with sorted publishers and consumers, whose order has no meaning."""
    stats = dict(stats)
    if "publishers" in stats:
        stats["publishers"] = sorted(stats["publishers"], key=lambda publisher: publisher["producerName"])
    if "subscriptions" in stats:
        stats["subscriptions"] = {
            name: {
                **sub,
                "consumers": sorted(sub["consumers"], key=lambda consumer: consumer["consumerName"]),
            }
            for name, sub in stats["subscriptions"].items()
        }
    return stats


def known_gaps() -> dict[str, str]:
    """The reason for each known difference, by scenario."""
    lines = (
        line.partition(":")
        for line in KNOWN_GAPS.read_text().splitlines()
        if line and not line.startswith("#")
    )
    return {name.strip(): reason.strip() for name, _, reason in lines}
