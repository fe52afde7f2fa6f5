"""Decides whether a recorded value and Magnetar's are equal.

Ledger ids, generated producer names and the like may differ. They are bound one to one where they first meet, and must stay
bound.
"""

import re
from collections.abc import Collection
from typing import Any

from streaming.broker.position import MAX

TIMES = frozenset({"publish_time", "deliver_at_time", "lastExpireTimestamp", "timestamp", "event_time"})
"""Times, of which only zero and non-zero are told apart."""

FREE = frozenset({"server_version", "feature_flags", "brokerServiceUrl", "authoritative", "proxy_through_service_url",
                  "state", "active", "message", "error_message"})  # fmt: skip
"""Fields in which implementations may differ; they are not compared."""

POSITIONS = frozenset({"markDeletePosition", "readPosition", "lastConfirmedEntry", "individuallyDeletedMessages",
                       "x-pulsar-message-id"})  # fmt: skip
"""Texts that consist of positions."""

LEDGERS = frozenset({"ledgerId", "CompactedTopicLedger"})
"""Ids of ledgers."""

NOT_OURS = frozenset({"msgDropRate>0"})

_POSITION = re.compile(r"(-?\d{1,20}):(-?\d{1,20})")
_ACK_SET = re.compile(r" \(ackSet [^)]*\)")
"""What 4.0.7 appends to a read position that a seek has set, until something is read."""
_GENERATED = re.compile(r"standalone-\d+-\d+")
_SPECIAL = (MAX, 2**64 - 1, 2**64 - 2)


class Bijection:
    """Recorded names and Magnetar's, bound one to one where they meet."""

    def __init__(self) -> None:
        self._ours: dict[Any, Any] = {}
        self._recorded: dict[Any, Any] = {}

    def meet(self, recorded: Any, ours: Any) -> bool:
        """Bind the two if both are free. Returns whether they are bound to each other now."""
        if recorded not in self._ours and ours not in self._recorded:
            self._ours[recorded], self._recorded[ours] = ours, recorded
        return bool(self._ours.get(recorded, _NOTHING) == ours)

    @property
    def met(self) -> Collection[Any]:
        """The recorded names that are bound."""
        return self._ours.keys()

    def ours(self, recorded: Any) -> Any:
        """Magnetar's name for a recorded one; the name itself if it is not bound."""
        return self._ours.get(recorded, recorded)

    def recorded(self, ours: Any) -> Any:
        """The recorded name for one of Magnetar's, with ``?`` in front if it is not bound."""
        return self._recorded.get(ours, f"?{ours}")


_NOTHING = object()


class Normaliser:
    """Compares recorded values with Magnetar's and binds names on the way. Ledger ids are bound per topic."""

    def __init__(self) -> None:
        self.ledgers: dict[str, Bijection] = {}
        self.names = Bijection()

    def of(self, topic: str) -> Bijection:
        """The ledger ids of a topic."""
        return self.ledgers.setdefault(topic, Bijection())

    def ledger(self, topic: str, recorded: int, ours: int) -> bool:
        """Whether it is the same ledger. Special ids are the same only if they are equal."""
        recorded, ours = _signed(recorded), _signed(ours)
        if recorded < 0 or ours < 0 or recorded in _SPECIAL or ours in _SPECIAL:
            return recorded == ours
        return self.of(topic).meet(recorded, ours)

    def our_ledger(self, topic: str, recorded: int) -> int:
        """Magnetar's id for a recorded ledger. An unbound one is not a ledger of the topic: it stays older or newer than the
        topic's ledgers, as it was (Magnetar's ids begin with 1)."""
        known = self.of(topic)
        if known.met and 0 <= recorded < min(known.met):
            return 0
        return int(known.ours(recorded))

    def difference(self, topic: str, recorded: Any, ours: Any, path: str = "", key: str = "") -> str | None:
        """The first difference between two values, as text; None if they are equal."""
        if key in FREE:
            return None
        if isinstance(recorded, dict) and isinstance(ours, dict):
            return self._of_dicts(topic, recorded, ours, path)
        if isinstance(recorded, list) and isinstance(ours, list):
            if len(recorded) != len(ours):
                return f"{path}: {len(recorded)} recorded, {len(ours)} ours: {recorded} / {ours}"
            for index, (one, other) in enumerate(zip(recorded, ours, strict=True)):
                if (found := self.difference(topic, one, other, f"{path}[{index}]", key)) is not None:
                    return found
            return None
        return (
            None
            if self._equal(topic, key, recorded, ours)
            else f"{path}: recorded {recorded!r}, ours {ours!r}"
        )

    def _of_dicts(self, topic: str, recorded: dict[str, Any], ours: dict[str, Any], path: str) -> str | None:
        free = FREE | NOT_OURS
        if path.endswith(".compactedLedger"):
            recorded = {**recorded, "size": self._without_longer_ids(topic, recorded, ours)}
        if missing := [key for key in recorded if key not in ours and key not in free]:
            return f"{path}.{missing[0]}: recorded {recorded[missing[0]]!r}, ours has none"
        if extra := [key for key in ours if key not in recorded and key not in free]:
            return f"{path}.{extra[0]}: ours {ours[extra[0]]!r}, recorded has none"
        for key, value in recorded.items():
            if (
                key in ours
                and (found := self.difference(topic, value, ours[key], f"{path}.{key}", key)) is not None
            ):
                return found
        return None

    def _without_longer_ids(self, topic: str, recorded: dict[str, Any], ours: dict[str, Any]) -> Any:
        """The size of a recorded compacted ledger. Each entry has its message id, so those of a broker with many ledgers are longer."""
        size, expected, entries = recorded.get("size"), ours.get("size"), recorded.get("entries")
        if not (isinstance(size, int) and isinstance(expected, int) and isinstance(entries, int)):
            return size
        longest = max((_id_bytes(each) for each in self.of(topic).met), default=1)
        return expected if 0 <= size - expected <= entries * (longest - 1) else size

    def _equal(self, topic: str, key: str, recorded: Any, ours: Any) -> bool:
        if key in TIMES and isinstance(recorded, int | float) and isinstance(ours, int | float):
            return (recorded > 0) == (ours > 0)
        if key in LEDGERS and isinstance(recorded, int) and isinstance(ours, int):
            return self.ledger(topic, recorded, ours)
        if key == "highest_sequence_id" and recorded in (0, 2**64 - 1):
            return ours in (0, 2**64 - 1)
        if isinstance(recorded, str) and isinstance(ours, str):
            if recorded == ours and key not in POSITIONS:
                return True  # a name, say, that only looks like a position
            return self._equal_texts(topic, recorded, ours)
        return bool(recorded == ours) and isinstance(recorded, bool) == isinstance(ours, bool)

    def _equal_texts(self, topic: str, recorded: str, ours: str) -> bool:
        recorded = _ACK_SET.sub("", recorded)
        if _GENERATED.fullmatch(recorded) and _GENERATED.fullmatch(ours):
            return self.names.meet(recorded, ours)
        theirs, mine = _POSITION.split(recorded), _POSITION.split(ours)
        if len(theirs) == 1 or len(theirs) != len(mine):
            return recorded == ours
        for index, (one, other) in enumerate(zip(theirs, mine, strict=True)):
            if index % 3 == 1:  # the ledger of a position
                if not self.ledger(topic, int(one), int(other)):
                    return False
            elif one != other:
                return False
        return True


def _id_bytes(ledger: int) -> int:
    """How many bytes a ledger's id has in protobuf."""
    return max(-(-ledger.bit_length() // 7), 1)


def _signed(value: int) -> int:
    return value - 2**64 if value > MAX else value
