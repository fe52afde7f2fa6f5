"""Compares traces that are not gated: those of `magnetar record`.

Clients did not wait for each other, so the broker may have carried commands out in another order than the proxy saw them, and
its answers came when they came. An answer is therefore matched with Magnetar's answer to the same request, receipt of the same
message or delivery of the same entry to the same subscription, wherever it stands. What differs is a difference, unless it has
one of these explanations:

* a message went to another consumer of its subscription: the order in which permits, acknowledgments and messages met
* several producers published at a time, and the broker stored their messages in another order; commands that name one of
  them name the same message in the replay
* an answer is missing because its connection, producer or consumer was closed at that moment
* an answer differs while other producers of its topic, or other consumers of its subscription, had commands under way
* later differences on a subscription or topic follow from the former
* an entry was stored before the recording began
* a transaction began before the recording
* a call is about a topic or a subscription that was there before the recording began
* the topic has messages that were published through REST or are too large for a line, or got calls of Pulsar 1's admin API, which are not recorded
* Magnetar does not support the command
"""

import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from http import HTTPStatus
from operator import itemgetter
from typing import Any, Literal
from urllib.parse import unquote

from schemas.commands import Admin
from schemas.effects import AdminResponse, Row, SendReceipt, Unsupported
from streaming.broker.admin_requests import call_of, topic_of
from streaming.broker.names import base_of
from streaming.broker.non_persistent.topic import is_non_persistent
from streaming.protocol.codec import Frame
from streaming.protocol.frames import MINUS_ONE
from streaming.protocol.requests import OF_THE_BROKER, OF_THE_GATEWAY, TRANSACTIONS
from streaming.traces.session import Session, SessionRecord, Stream, stream_name
from streaming.traces.trace import Trace

OTHER_CONSUMER = "race: a message went to another consumer of its subscription"
FOLLOWS = "follows from a race on the subscription or topic"
CLOSING = "race: the connection, producer or consumer was being closed"
ORDER = "race: messages of several producers were stored in another order"
UNDER_WAY = "race: others had commands under way on the topic"
OLDER = "the entry was stored before the recording began"
BEGUN = "the transaction began before the recording"
EXISTED = "the topic or subscription was there before the recording began"
NOT_SUPPORTED = "Magnetar does not support"
LACKING = "follows from what is not recorded of the topic"
REDIRECTED = "a lookup went from one broker to another"

UNRECORDED = "not_recorded"
"""The event of a note: so many (`count`) messages or calls that passed are not in the recording, on a `topic` since a time (ms)."""

Unrecorded = Literal["rest", "v1", "large"]

NOT_RECORDED = {
    "rest": "not recorded: a message was published through REST (POST /topics/…)",
    "v1": "not recorded: a call of Pulsar 1's admin API (/admin/persistent/…)",
    "large": "not recorded: a message or call whose line would have more than 64 MiB",
}

MOMENT = 1000
"""What a broker had under way for an object that was closed is at most so old (ms)."""

_AT_ONCE = 100
"""Commands may be carried out in another order if they came within so many ms."""


def session_of(trace: Trace, *, connection_prefix: str = "") -> Session:
    """The session that compares a trace."""
    kind = Session if trace.gated else UngatedSession
    return kind(trace, connection_prefix=connection_prefix)


class UngatedSession(Session):
    """Feeds a trace that is not gated to its own broker."""

    def __init__(self, trace: Trace, *, connection_prefix: str = "") -> None:
        super().__init__(trace, connection_prefix=connection_prefix)
        self._now = 0
        self._subscriptions: dict[Stream, tuple[str, str]] = {}
        self._raced: set[str | tuple[str, str]] = set()
        self._written: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
        self._moved: dict[tuple[str, tuple[int, int]], tuple[int, int]] = {}
        self._is_of_entries = False
        self._had: set[str | tuple[str, str]] = set()
        """The topics, and subscriptions with their topics, that Magnetar has or had."""
        self._asked: dict[Hashable, int] = {}
        self._closed: dict[str | Stream, list[int]] = defaultdict(list)
        self._commands: dict[str, list[tuple[int, str, Stream]]] = defaultdict(list)
        self._not_supported: set[tuple[str, int]] = set()
        self._sent: set[tuple[str, int]] = set()
        """Producer and sequence id of each message that was sent in the recording."""
        self._lacking: dict[str, int] = {}
        """Since when a topic has what is not recorded."""
        self._transacts = any(record.get("cmd") in TRANSACTIONS for record in trace.records)
        self._transactions: dict[tuple[int, int], int] = {}
        """Magnetar's numbers of transactions, by coordinator and recorded number."""
        self._absent: set[tuple[str, tuple[int, int]]] = set()
        """Entries that are not recorded, of such topics."""
        for record in trace.records:
            if record["dir"] == "note" and record.get("event") == UNRECORDED:
                self._note_unrecorded(record)
        self._open_recorded: dict[Hashable, deque[tuple[int, Stream, dict[str, Any]]]] = defaultdict(deque)
        self._open_ours: dict[Hashable, deque[tuple[int, Stream, Frame]]] = defaultdict(deque)

    def _settings(self) -> dict[str, Any]:
        """The broker's own checks run: nobody noted when the recorded ones did. Without any request to a coordinator, no transactions are turned
        on: it makes no difference then, but that a what-if takes the log."""
        settings = dict(self.trace.header["broker_config"])
        if not self._transacts:
            settings.pop("transactionCoordinatorEnabled", None)
        return settings

    def _take(self, row: Row, record: dict[str, Any]) -> None:
        effect = row.effect
        if isinstance(effect, Unsupported):
            self.explained[f"{NOT_SUPPORTED} this: {effect.cause}"] += 1
            return
        if isinstance(effect, SendReceipt) and effect.metadata is not None:
            key = effect.topic, effect.metadata.producer_name, effect.metadata.sequence_id
            self._written[key].append((effect.ledger_id, effect.entry_id))
        super()._take(row, record)

    def _note_unrecorded(self, record: dict[str, Any]) -> None:
        what, topic, count, since = (record.get(name) for name in ("what", "topic", "count", "since"))
        if what in [*NOT_RECORDED]:
            self.explained[NOT_RECORDED[what]] += count if isinstance(count, int) else 1
        if isinstance(topic, str):
            at = since if isinstance(since, int) else int(record["t"])
            self._lacking[topic] = min(self._lacking.get(topic, at), at)

    def _lacks(self, topic: str, time: int) -> bool:
        """Whether something is not recorded of a topic, or of the topic of a partition, before `time`."""
        return any(self._lacking.get(each, time + 1) <= time for each in (topic, base_of(topic)))

    # -- commands

    def _commands_of(self, record: dict[str, Any]) -> Iterator[SessionRecord]:
        if record["dir"] == "admin":
            self._now = int(record["t"])
            path = record["path"].partition("?")[0]
            if record["method"] == "GET" and path.endswith(_SHOWN_BY_GATEWAYS):
                return
            if record.get("status") == _REFUSED and self.broker.partitioned.get(topic_of(path) or ""):
                return  # the call is not for partitioned topics
            if record.get("status") == _EXISTS and record["method"] == "PUT" and _NAMESPACE.fullmatch(path):
                return  # Magnetar, which does not demand that namespaces were created, would set its policies
        if record["dir"] == "out" and record["cmd"] == "_TCP_CLOSE":
            # The broker may have ended or restarted, of which a proxy sees nothing else. Without effect on a connection that is closed here.
            lost = {"command": "CONNECTION_LOST", "connection": self._connection(record)}
            yield SessionRecord(int(record["t"]), None, lost)
        yield from super()._commands_of(record)

    def _frame(self, record: dict[str, Any]) -> tuple[str | None, dict[str, Any]] | None:
        given, record = record, self._in_our_transaction(record)
        name, connection, fields = record["cmd"], self._connection(record), record.get("fields", {})
        self._now = int(record["t"])
        if name == "_TCP_CLOSE":
            self._closed[connection].append(self._now)
        elif name.startswith("_TCP") or name in OF_THE_GATEWAY:
            pass
        elif name not in OF_THE_BROKER:
            self.skipped[name] += 1
            self.explained[f"{NOT_SUPPORTED} {name}"] += 1
            self._not_supported.add((connection, fields.get("request_id", -1)))
            return None
        elif name == "SEND" and record.get("intact") is False:
            refused = {name: fields[name] for name in ("producer_id", "sequence_id")}
            self._answer(Frame(connection, "SEND_ERROR", {**refused, "error": "ChecksumError"}))
            return None
        elif name == "SEND" and record.get("metadata"):
            self._sent.add(_identity_of(record["metadata"]))
        self._is_of_entries = name == "REDELIVER_UNACKNOWLEDGED_MESSAGES" or (
            name == "ACK" and fields.get("ack_type") != "Cumulative"
        )
        asked = super()._frame(record)
        if asked is not None and any(fields.get(ids) and asked[1].get(ids) == [] for ids in _IDS):
            return None  # it is about absent entries only
        if asked is not None and asked[0] is not None:
            if _LEAST in given.get("fields", {}) and _LEAST not in fields:
                self.explained[BEGUN] += 1
                self._raced.add(asked[0])
            self._note_command(self._stream(connection, name, fields), asked[0], name, fields)
        return asked

    def _ids(self, topic: str, ids: Any) -> Any:
        if self._is_of_entries and isinstance(ids, list):
            ids = [each for each in ids if (topic, _position(each)) not in self._absent]
        elif self._is_of_entries:
            moved = self._moved.get((topic, _position(ids)))
            if moved is not None:
                return {**ids, "ledgerId": moved[0], "entryId": moved[1]}
        return super()._ids(topic, ids)

    def _in_our_transaction(self, record: dict[str, Any]) -> dict[str, Any]:
        """A recorded frame with Magnetar's number of its transaction: the broker may have had others before. What belongs to a transaction
        that began before the recording belongs to none: nothing in the log would end it, and it would hold back all that follows."""
        changed = dict[str, Any]()
        for part in ("fields", "metadata"):
            ids = record.get(part) or {}
            if not self._transacts or _LEAST not in ids or _MOST not in ids:
                continue
            ours = self._transactions.get((ids[_MOST], ids[_LEAST]))
            if ours is None and record["cmd"].removesuffix("_RESPONSE") not in TRANSACTIONS:
                changed[part] = {name: value for name, value in ids.items() if name not in (_MOST, _LEAST)}
            else:
                changed[part] = {**ids, _LEAST: _NO_TRANSACTION if ours is None else ours}
        return {**record, **changed} if changed else record

    def _note_command(self, stream: Stream, topic: str, name: str, fields: dict[str, Any]) -> None:
        self._commands[topic].append((self._now, name, stream))
        if name not in _HARMLESS:
            self._had.add(topic)
        if name == "SUBSCRIBE":
            self._had.add((topic, fields["subscription"]))
        self._asked[self._identity(stream, fields)] = self._now
        if name == "SUBSCRIBE":
            self._subscriptions[stream] = topic, fields["subscription"]
        elif name in ("CLOSE_PRODUCER", "CLOSE_CONSUMER", "UNSUBSCRIBE"):
            self._closed[stream].append(self._now)

    # -- matching

    def _match_admin(self, effect: AdminResponse, record: dict[str, Any]) -> None:
        method, _, path = effect.cause.partition(" ")
        topic, ours = topic_of(path), effect.fields.status
        about: list[str | tuple[str, str]] = []
        if topic is not None:
            about = [topic]
            if (named := _SUBSCRIPTION.match(call_of(Admin(method=method, path=path)))) is not None:  # type: ignore[arg-type]
                about.append((topic, unquote(named[1])))
        recorded = record.get("status", ours)
        created = method == "PUT" and recorded == _EXISTS and ours < HTTPStatus.BAD_REQUEST
        lacked = recorded != ours == HTTPStatus.NOT_FOUND
        if (created and not self._has_had(about[-1:])) or (lacked and not self._has_had(about)):
            self.explained[EXISTED] += 1
        else:
            super()._match_admin(effect, record)
        if ours < HTTPStatus.BAD_REQUEST:
            self._had.update(about)

    def _has_had(self, about: list[str | tuple[str, str]]) -> bool:
        """Whether Magnetar has or had a topic, or its whole, and a subscription of it. So does it all of a namespace or a tenant."""
        return all(
            each in self._had or (isinstance(each, str) and base_of(each) in self._had) for each in about
        )

    def _match(self, stream: Stream) -> None:
        recorded, ours = self._recorded[stream], self._ours[stream]
        while recorded:
            record = recorded.popleft()
            if self._is_expected(stream, record):
                key = self._key_of_recorded(stream, record)
                if key is None:
                    topic = self._topics.get(stream, "")
                    lacks = self._lacks(topic, int(record["t"]))
                    self.explained[LACKING if lacks else OLDER] += 1
                    if lacks:
                        self._absent.add((topic, _position(record["fields"]["message_id"])))
                elif self._open_ours[key]:
                    _, other, answer = self._open_ours[key].popleft()
                    self._compare(stream, record, other, answer)
                else:
                    self._open_recorded[key].append((int(record["t"]), stream, record))
        while ours:
            answer = ours.popleft()
            key = self._key_of_ours(stream, answer)
            if self._open_recorded[key]:
                _, other, record = self._open_recorded[key].popleft()
                self._compare(other, record, stream, answer)
            else:
                self._open_ours[key].append((self._now, stream, answer))

    def _is_expected(self, stream: Stream, record: dict[str, Any]) -> bool:
        """Whether Magnetar has an answer to match. Not so: that of a command that it does not support, or a close."""
        cmd, fields = record["cmd"], record.get("fields", {})
        self._now = max(self._now, int(record["t"]))
        if cmd == "_TCP_CLOSE":
            self._closed[stream[0]].append(self._now)
        if cmd in ("CLOSE_PRODUCER", "CLOSE_CONSUMER"):
            self._closed[stream].append(self._now)
        if (stream[0], fields.get("request_id", -1)) in self._not_supported or cmd in _OTHERS:
            return False
        if cmd == "LOOKUP_RESPONSE" and fields.get("response") == "Redirect":
            self.explained[REDIRECTED] += 1
            record["fields"] = {**fields, "response": "Connect"}
        return True

    def _key_of_recorded(self, stream: Stream, record: dict[str, Any]) -> Hashable:
        """What a recorded frame answers or delivers. None: an entry from before the recording."""
        fields = record.get("fields", {})
        if record["cmd"] != "MESSAGE":
            return self._identity(stream, fields) or (stream, record["cmd"])
        topic = self._topics.get(stream, "")
        if is_non_persistent(topic):
            return "MESSAGE", self._subscriptions.get(stream, stream), *_identity_of(record["metadata"])
        position = self._position_of(topic, fields["message_id"], record["metadata"])
        if position is None and _identity_of(record["metadata"]) in self._sent:
            return "MESSAGE", stream, record["t"], "not stored here"  # which nothing matches
        return None if position is None else ("MESSAGE", self._subscriptions.get(stream, stream), *position)

    def _position_of(
        self, topic: str, id_: dict[str, int], metadata: dict[str, Any]
    ) -> tuple[int, int] | None:
        """Where Magnetar has a recorded entry: the one of the same producer and sequence id. None: nowhere."""
        written = self._written.get((topic, metadata["producer_name"], metadata["sequence_id"]))
        if not written:
            return None
        ledger, entry = id_["ledgerId"], id_["entryId"]
        known = self.normaliser.of(topic)
        if ledger not in known.met:  # a message may come before its receipt
            for ours, number in written:
                if number == entry and known.meet(ledger, ours):
                    return ours, number
        elif (known.ours(ledger), entry) in written:
            return known.ours(ledger), entry
        nearest = min(written, key=lambda position: abs(position[1] - entry))
        self._moved[topic, (ledger, entry)] = nearest
        return nearest

    def _key_of_ours(self, stream: Stream, answer: Frame) -> Hashable:
        """The same of Magnetar's frame."""
        if answer.cmd != "MESSAGE":
            return self._identity(stream, answer.fields) or (stream, answer.cmd)
        subscription, position = self._subscriptions.get(stream, stream), answer.fields["message_id"]
        if is_non_persistent(self._topics.get(stream, "")) and answer.metadata is not None:
            return "MESSAGE", subscription, *_identity_of(answer.metadata)
        return "MESSAGE", subscription, position["ledgerId"], position["entryId"]

    @staticmethod
    def _identity(stream: Stream, fields: dict[str, Any]) -> Hashable:
        if fields.get("request_id", MINUS_ONE) != MINUS_ONE:
            return stream, "request", fields["request_id"]
        return (stream, "sequence", fields["sequence_id"]) if "sequence_id" in fields else None

    def _compare(self, stream: Stream, record: dict[str, Any], other: Stream, answer: Frame) -> None:
        subscription = self._subscriptions.get(stream)
        if record["cmd"] == answer.cmd == "NEW_TXN_RESPONSE":
            self._note_transaction(record.get("fields", {}), answer.fields)
        record = self._in_our_transaction(record)
        fields = record.get("fields", {})
        if stream != other and subscription is not None:
            self._raced.add(subscription)
            self.explained[OTHER_CONSUMER] += 1
            own = {name: fields[name] for name in ("consumer_id", "consumer_epoch") if name in fields}
            rest = {name: value for name, value in answer.fields.items() if name not in _OF_CONSUMERS}
            answer = answer._replace(fields={**rest, **own})
        topic, asked = self._topics.get(stream, ""), self._identity(stream, fields)
        if "message_id" in fields and answer.cmd == record["cmd"]:
            position, ours = (_position(each["message_id"]) for each in (fields, answer.fields))
            is_moved = (topic, position) in self._moved
            if record["cmd"] == "SEND_RECEIPT" and MINUS_ONE not in (*position, *ours):
                bound = self.normaliser.of(topic).ours(position[0]) if not is_moved else None
                is_new = bound == position[0]
                lacks = self._lacks(topic, int(record["t"]))
                if not is_moved and (position[1] != ours[1] or not (is_new or bound == ours[0])):
                    is_moved = lacks or self._is_contended(stream, asked, int(record["t"]))
                if is_moved:
                    self._moved[topic, position] = ours
                    self.explained[LACKING if lacks else ORDER] += 1
            if is_moved:
                record = {**record, "fields": _without_position(fields)}
                answer = answer._replace(fields=_without_position(answer.fields))
        found = self._frame_difference(topic, record, answer)
        if found is not None and fields.get(_LEAST) == _NO_TRANSACTION:
            self.explained[BEGUN] += 1
        elif found is not None:
            self._differ(stream, int(record["t"]), asked, f"{record['cmd']} {found}")

    def _note_transaction(self, recorded: dict[str, Any], ours: dict[str, Any]) -> None:
        """A transaction begins, unless one of the answers is an error."""
        if _LEAST in recorded and _LEAST in ours and recorded.get(_MOST) == ours.get(_MOST):
            self._transactions[recorded.get(_MOST, 0), recorded[_LEAST]] = ours[_LEAST]

    def _differ(self, stream: Stream, time: int, asked: Hashable, text: str) -> None:
        """Note a difference at `time`, or its explanation."""
        topic = self._topics.get(stream, "")
        if self._subscriptions.get(stream) in self._raced or topic in self._raced:
            self.explained[FOLLOWS] += 1
        elif self._lacks(topic, time):
            self.explained[LACKING] += 1
        elif self._is_closed(stream, time):
            self.explained[CLOSING] += 1
        elif self._is_contended(stream, asked, time):
            self.explained[UNDER_WAY] += 1
            if stream[1] == "producer":  # a message may be stored, and another not
                self._raced.add(topic)
        else:
            self.differ(f"{stream_name(stream)}: {text}")

    def _is_closed(self, stream: Stream, time: int) -> bool:
        return any(
            abs(closed - time) <= MOMENT
            for each in (stream, stream[0])
            for closed in self._closed.get(each, ())
        )

    def _is_contended(self, stream: Stream, asked: Hashable, until: int) -> bool:
        """Whether others sent commands since a stream asked that may change the answer: to a producer, the commands of other
        producers of its topic; to a consumer, those of other consumers of its subscription and, if it asked, what is published."""
        since = self._asked.get(asked, until) - _AT_ONCE
        commands = self._commands.get(self._topics.get(stream, ""), [])
        start = bisect_left(commands, since, key=itemgetter(0))
        stop = bisect_left(commands, until + 1, lo=start, key=itemgetter(0))
        subscription = self._subscriptions.get(stream)
        for _, name, other in commands[start:stop]:
            if other != stream and name not in _HARMLESS:
                if other[1] == "producer":
                    contends = asked is not None
                else:
                    contends = stream[1] != "producer" and self._subscriptions.get(other) == subscription
                if contends:
                    return True
        return False

    def end_step(self, following: str) -> None:
        """Report every frame that has no counterpart when the trace ends: before, its counterpart may still come."""
        if following != "end":
            return
        self.step = "end"
        for recorded in self._open_recorded.values():
            for time, stream, record in recorded:
                if record["cmd"] == "_TCP_CLOSE":
                    continue  # the end of a broker
                fields = record.get("fields", {})
                text = f"recorded {record['cmd']} {fields}, ours has none"
                self._differ(stream, time, self._identity(stream, fields), text)
        for ours in self._open_ours.values():
            for time, stream, answer in ours:
                text = f"ours {answer.cmd} {answer.fields}, recorded has none"
                self._differ(stream, time, self._identity(stream, answer.fields), text)
        self._open_recorded.clear()
        self._open_ours.clear()


def _position(id_: dict[str, int]) -> tuple[int, int]:
    return id_["ledgerId"], id_["entryId"]


def _without_position(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "message_id"}


_IDS = ("message_id", "message_ids")
"""The fields of ACK and REDELIVER_UNACKNOWLEDGED_MESSAGES that name entries."""

_MOST, _LEAST = "txnid_most_bits", "txnid_least_bits"
"""The coordinator of a transaction, and its number there."""

_NO_TRANSACTION = 2**62
"""The number of a transaction that began before the recording: no coordinator has that many."""

_OTHERS = frozenset({"WATCH_TOPIC_UPDATE", "AUTH_CHALLENGE", "TOPIC_MIGRATED"})
"""What a broker sends without being asked, and Magnetar does not."""

_SHOWN_BY_GATEWAYS = ("/partitioned-stats", "/partitioned-internalStats", "/internal-info")
"""Calls that read, and that a gateway answers from other calls."""

_REFUSED, _EXISTS = HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.CONFLICT

_NAMESPACE = re.compile(r"/namespaces/[^/]+/[^/]+")
_SUBSCRIPTION = re.compile(r"/subscription/([^/]+)")

_HARMLESS = frozenset({"LOOKUP", "PARTITIONED_METADATA", "GET_SCHEMA"})
"""Commands that change nothing."""

_OF_CONSUMERS = frozenset({"consumer_id", "consumer_epoch"})


def _identity_of(metadata: dict[str, Any]) -> tuple[str, int]:
    return metadata["producer_name"], metadata["sequence_id"]
