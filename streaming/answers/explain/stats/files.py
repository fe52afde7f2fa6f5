"""What people paste into a ticket: the output of ``pulsar-admin topics stats`` and the like, in files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from schemas.commands.nesting import is_deep
from schemas.undecodable import UNDECODABLE
from sinks.small_files import in_utf8, read_small
from streaming.answers.explain.stats.observed import Observed, ShownFields, stats_of
from streaming.answers.history.folders import NotFound, listed
from streaming.broker.config import ServiceConfiguration
from streaming.broker.names import whole_of
from streaming.broker.policies.hierarchy import NO_POLICIES, Policies

UNNAMED = "the topic"
"""A topic whose name nobody told: stats don't have it."""

MOST_BYTES = 64 << 20


class BadStats(ValueError):
    """A file is not what it should be. The text says why."""


class Told(NamedTuple):
    """What other files say of a topic: its `own` policies, those of its `namespace`, the broker's `config`. None: they don't say."""

    own: Policies | None = None
    namespace: Policies | None = None
    config: ServiceConfiguration | None = None


def from_files(
    stats: Path, internal: Path | None, told: Told, topic: str | None, now: int
) -> tuple[str, list[Observed], int]:
    """The topic's name, what the files show of it or of its partitions, and their number (0: it is not partitioned).

    Raises `BadStats`, `NotFound` for a topic that they don't have, and OSError.
    """
    shown = _object(stats)
    if "subscriptions" not in shown and "partitions" not in shown:
        what = "internal stats" if "cursors" in shown or "ledgers" in shown else "something else"
        raise BadStats(
            f"{stats}: expected what `pulsar-admin topics stats` or `partitioned-stats --per-partition` prints, and this is {what}: it "
            "has neither subscriptions nor partitions"
        )
    inside = None if internal is None else _object(internal)
    if inside is not None and "ledgers" not in inside and "partitions" not in inside:
        raise BadStats(
            f"{internal}: expected what `pulsar-admin topics stats-internal` or `partitioned-stats-internal` prints: it has neither "
            "ledgers nor partitions"
        )
    missing, (own, namespace, config) = [], told
    if inside is None:
        missing.append("the internal stats: give --internal-stats")
    if namespace is None:
        missing.append(
            "the policies of the namespace: give --policies (pulsar-admin namespaces policies NAMESPACE)"
        )
    elif own is None:
        own = NO_POLICIES
        missing.append("policies of the topic itself: it is taken to have none")
    if config is None:
        missing.append(
            "the broker's settings: give --policies (broker.conf, or pulsar-admin brokers get-runtime-config)"
        )
    parts = shown.get("partitions") or {}
    if not isinstance(parts, dict):
        raise BadStats(f"{stats}: its partitions are not an object")
    metadata = shown.get("metadata")
    number = ShownFields(metadata).number("partitions") or len(parts)

    def observed(name: str, of: Any, inner: Any) -> Observed:
        try:
            shown = stats_of(of)
        except ValueError as error:
            raise BadStats(f"{stats}: {error}, of {name}: give all that `pulsar-admin` prints") from None
        return Observed(
            name,
            now,
            shown,
            None if inner is None else ShownFields(inner),
            own,
            namespace,
            config,
            missing,
        )

    if not parts:
        if number:
            missing.append(
                f"the stats of each of the {number} partitions: add --per-partition to `pulsar-admin topics partitioned-stats`"
            )
        name = topic or UNNAMED
        return name, [observed(name, shown, None if number else inside)], number
    insides = dict(_parts(inside))
    chosen = {name: of for name, of in parts.items() if topic is None or _is(topic, name)}
    if topic is not None and not chosen:
        raise NotFound(f"{stats} has no topic {topic}: {listed('partition', topic, parts)}")
    whole = whole_of(next(iter(chosen))) or topic or UNNAMED
    if len(chosen) == 1:
        whole = next(iter(chosen))
    return (
        whole,
        [observed(name, of, insides.get(name)) for name, of in chosen.items()],
        len(chosen) if len(chosen) > 1 else 0,
    )


def _parts(inside: dict[str, Any] | None) -> Iterator[tuple[str, Any]]:
    parts = None if inside is None else inside.get("partitions")
    if isinstance(parts, dict):
        yield from parts.items()


def _is(topic: str, partition: str) -> bool:
    """Whether a name, in full or not, is that of a partition or of the whole."""
    names = (topic, f"persistent://{topic}", f"persistent://public/default/{topic}")
    return partition in names or whole_of(partition) in names


def _object(path: Path) -> dict[str, Any]:
    """A JSON object in a file. Raises `BadStats`."""
    text = in_utf8(read_small(path, MOST_BYTES))
    if is_deep(text):
        raise BadStats(f"{path} nests too deeply: no stats do")
    try:
        found = msgspec.json.decode(text)
    except UNDECODABLE as error:
        if not text.strip():
            raise BadStats(f"{path} is empty: expected JSON") from None
        looks = ": it looks like HTML" if text.lstrip()[:1] == b"<" else ""
        cut = ": it is cut off" if "truncated" in str(error) else ""
        raise BadStats(f"{path} is not JSON{looks or cut or f': {error}'}") from None
    if not isinstance(found, dict):
        raise BadStats(f"{path}: expected a JSON object, and this is {type(found).__name__}")
    return found
