"""The engine of a server before a Spark query: commands go to the ingress topic, and answers come from the response topic.

The problem
    `magnetar serve` can fold commands itself, or stand before a query that does. Here, the broker is in another process,
    and between the two there are only two Kafka topics. Any number of servers may stand before one query, and each must
    find its own answers among all of them. A server may be killed, and its clients must not stay connected for ever. The
    server itself wants to know things (which topics a namespace has, how many partitions a topic has), but the state
    is elsewhere. And if the query stops, nothing fails: answers just do not come.

The idea
    *Names.* Each server has a name, and each of its lives an *epoch*, the time of its start in µs. Connections are named
    ``<name>.<epoch>.<number>``. No two have the same name, so a row belongs to a server if its connection begins with
    the server's name and epoch. The first command of a life is CONNECTION_LOST for all connections of the lives before.

    *Questions.* Whatever the server wants to know, it asks by an ADMIN command, on a new connection for each call. A
    command on a topic gets one answer. A command to the whole broker goes to all ingress partitions and gets one from
    each (`_Call`).

    *Greetings.* What CONNECTED tells clients depends on the broker's configuration. The first question of a life asks for it,
    and clients that connect before the answer wait for it (`Engine.greeting`).

    *Order.* Kafka keeps the order of a partition, and a topic is in one partition. So the answer to a question that was
    written after a command shows that the command was folded. That is how `submit` waits for other commands than ADMIN.

The data
    `_pending`       commands to write in the loop's next turn, all of them with one look of the gate
    `_calls`         connection → a call that waits for its answers
    `_asked_of_all`  connection and number of a request to a coordinator → the ingress partitions that have answered it
    `_received`      responses from the reader's thread, for the loop's next turn
    `_dones`         callbacks of commands that Kafka has, from the writer's threads
    `_entries`       the last 64 entries that calls asked for; other rows carry their entry
    `_unanswered_since`   when a command was written that expects an answer, if none has come since

Threads
    `CommandWriter` and `ResponseReader` have threads of their own. These append to a deque and wake the loop (`_soon`),
    once for all that comes until the loop takes it, or report a failure. Another thread waits if Kafka does not know the
    ingress topic any more (`_write_later`). Everything else runs on the loop.

In order
    Server ``s``, in the life that began at 1700, asks for the topics of a namespace, with two ingress partitions::

        submit     _calls[s.1700.7] waits for 2 answers
        _append    ADMIN GET /namespaces/public/default/topics?mode=ALL, connection s.1700.7
        _write     the gate judges it; the writer sends it to partitions 0 and 1
        (query)    folds it in both, and writes an ADMIN_RESPONSE to s.1700.7 in each
        _is_own    s.1700.7 begins with s.1700.
        _take      both rows go to _calls[s.1700.7], which is done; rows of clients' connections go to _deliver

What fails, and how
    * A command that the gate refuses is not written: the query would put it into its quarantine, and nobody would answer.
    * A connection of the same name with a later epoch: another server has taken the name, `NameTaken`.
    * The ingress topic has another number of partitions than at the start, or the response topic cannot be read:
      `TopicsChanged`.
    * Kafka does not take a command: `NotWritten`.
    * No answer: a call fails with `NoAnswer` after 45 s. Clients wait, and the log says so after 15 s.
    * After the first failure (`_fail`), the engine takes no more commands and `failed` has the error.

What it costs
    A round trip through Kafka and a micro-batch of the query for each call. Every server reads all of the response topic.
"""

import asyncio
import logging
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote, unquote

import msgspec

from schemas.commands import (
    Ack,
    Admin,
    AnyCommand,
    BrokerConfig,
    ConnectionLost,
    Publish,
    Refused,
    Send,
    to_json,
)
from schemas.effect_fields import AdminResponseFields
from schemas.effects import AdminResponse, Quarantined, Row
from schemas.entries import EntryNotFound
from schemas.errors import MagnetarError
from streaming.broker.admin.namespaces import NOT_EMPTY
from streaming.broker.admin.partitioned_topics import EXISTS, IN_USE
from streaming.broker.admin_requests import topic_of, topic_path
from streaming.broker.config import ServiceConfiguration
from streaming.broker.names import COORDINATOR_ASSIGN, is_transaction_topic, partitions_of
from streaming.broker.parameters import flag
from streaming.broker.topic.abstract_topic import Attached
from streaming.kafka.config import PLAIN, KafkaConfig
from streaming.kafka.topics import are_distinct, existing_topic, holds_records
from streaming.kafka.url import KafkaUrl, KafkaUrlError
from streaming.kafka.writer import CommandWriter, NotWritten
from streaming.metrics.durations import Durations
from streaming.protocol.plain import LONGEST_TOPIC
from streaming.quality.gate import judge
from streaming.runtime.clock import RealClock
from streaming.server.clock import Clock
from streaming.server.engine import Deliver, EngineStopped, Greeting, NoAnswer, StoredEntry, tell_failure
from streaming.server.responses import Response, ResponseReader

log = logging.getLogger(__name__)

ANSWER_SECONDS = 45.0
"""How long a call waits for its answer."""

SILENCE_SECONDS = 15.0
"""After so long without an answer, the log says so."""

_LOOK_SECONDS = 5.0
_ENTRIES = 64
_CLOSE_SECONDS = 10.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNASKED = re.compile(rb'\{"command":"(?:FLOW|ACK|REDELIVER_UNACKNOWLEDGED_MESSAGES|CONNECTION_LOST)"')
_TO_COORDINATOR = re.compile(
    rb'\{"command":"(?:TC_CLIENT_CONNECT_REQUEST|NEW_TXN|ADD_PARTITION_TO_TXN|ADD_SUBSCRIPTION_TO_TXN|END_TXN)"'
)
_MOST_ASKED = 100_000
"""Requests to coordinators that wait for answers. Some never get one."""
_NAMESPACE = re.compile(r"/namespaces/([^/]+/[^/]+)")
_CONFIGURATION = "/brokers/configuration/runtime"


class _Request(msgspec.Struct):
    connection: str
    request_id: int


_read_request = msgspec.json.Decoder(_Request).decode


class BadName(ValueError):
    """A text can't be the name of a server."""


class NameTaken(RuntimeError):
    """Another server with the same name has started."""


class TopicsChanged(RuntimeError):
    """The topics of the query can't be used any more. The text says why."""


class _Pending(NamedTuple):
    """`known`: the command in `value`, if nothing need be checked but its size."""

    topic: str | None
    value: bytes
    call: "_Call | None"
    done: Callable[[], None] | None
    known: Send | Ack | None


class _Call:
    """A call that waits for its answers: `expected` of them, of which each ingress partition gives one."""

    def __init__(self, expected: int, done: asyncio.Future[list[Row]]) -> None:
        self._expected, self._rows, self.done = expected, dict[int, Row](), done

    def answer(self, partition: int, row: Row) -> None:
        """Take an answer."""
        self._rows[partition] = row
        if len(self._rows) == self._expected:
            self.end([self._rows[each] for each in sorted(self._rows)])

    def end(self, rows: list[Row]) -> None:
        """End the call with these rows, unless nobody waits for them any more."""
        if not self.done.done():
            self.done.set_result(rows)

    def fail(self, error: Exception) -> None:
        """The same with an error."""
        if not self.done.done():
            self.done.set_exception(error)


def server_name(text: str | None, port: int) -> str:
    """The name of a server; by default made of the machine's name and the `port` on which it listens. Raises `BadName`."""
    if text is None:
        host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:58]
        return f"{host}-{port}"
    if not _NAME.fullmatch(text):
        raise BadName(f"--name {text!r}: expected up to 64 ASCII letters, digits, '-' and '_'")
    return text


class QueryEngine:
    """See `streaming.server.engine.Engine`. Use it as an asynchronous context manager.

    Entering it raises `KafkaUrlError`, `KafkaConfigError`, `KafkaUnreachable` and `NoSuchTopic`. It fails with `NotWritten`,
    `NameTaken` or `TopicsChanged`.
    """

    shows_topic_events = False
    answers_in_order = False
    written: Durations | None = None

    def __init__(
        self,
        ingress: KafkaUrl,
        responses: KafkaUrl,
        name: str,
        *,
        config: KafkaConfig = PLAIN,
        clock: Clock | None = None,
        broker: BrokerConfig | None = None,
        begins_with: Sequence[AnyCommand] = (),
    ) -> None:
        """`broker`: the configuration that the broker gets now. `begins_with`: commands to the whole broker with which the log begins,
        if it is empty."""
        self._ingress, self._responses, self._config = ingress, responses, config
        self._name, self._epoch = name, time.time_ns() // 1000
        self._life = f"{name}.{self._epoch}."
        self._broker, self._begins_with = broker, begins_with
        self.clock: Clock = clock or RealClock()
        self._deliver: Deliver = _nobody
        self._connections = 0
        self._pending: list[_Pending] = []
        self._scheduled = False
        self._calls: dict[str, _Call] = {}
        self._entries: dict[tuple[str, int, int], StoredEntry] = {}
        self._asked_of_all: dict[tuple[str, int | None], set[int]] = {}
        self._received: deque[Response] = deque()
        self._receiving = False
        self._dones: deque[Callable[[], None]] = deque()
        self._calling = False
        self._stopped: str | None = None
        self._unanswered_since: float | None = None
        self._silent = False
        self._look: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "QueryEngine":
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[NoReturn] = self._loop.create_future()
        self.greeting: asyncio.Future[Greeting] = self._loop.create_future()
        run = "`magnetar run` with this --ingress and --responses creates it: start that first"
        existing_topic(self._ingress, run, self._config)
        existing_topic(self._responses, run, self._config)
        if not are_distinct([self._ingress, self._responses], self._config):
            raise KafkaUrlError(f"{self._ingress.topic}: ingress and responses need separate topics")
        judge((), ())
        self._reader = ResponseReader(
            self._responses, self._config, self._is_own, self._receive, self._response_failed
        )
        try:
            self._writer = CommandWriter(self._ingress, self._config, self._fail_soon)
        except BaseException:
            self._reader.close()
            raise
        first: list[AnyCommand] = [ConnectionLost(connection=self._life, prefix=f"{self._name}.")]
        if self._broker is not None:
            first.append(self._broker)
        if self._begins_with and not holds_records(self._ingress, self._config):
            first += self._begins_with
        asking = self.new_connection()
        first.append(Admin(connection=asking, method="GET", path=_CONFIGURATION))
        self._calls[asking] = call = _Call(self._writer.partitions, self._loop.create_future())
        call.done.add_done_callback(partial(self._told, asking))
        written = asyncio.wrap_future(self._writer.send_to_all([*map(to_json, first)], self.now()))
        await asyncio.wait((written, self.failed), return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            written.cancel()
            await self.__aexit__()
            self.failed.result()
        self._asked()
        self._look_after()
        return self

    def _told(self, asking: str, answers: asyncio.Future[list[Row]]) -> None:
        """The query has answered with the broker's configuration, which all ingress partitions have."""
        del self._calls[asking]
        if answers.cancelled() or answers.exception() is not None:  # the engine has failed
            return
        found: Any = answers.result()[0].effect
        texts = found.fields.response
        own = Greeting.of(ServiceConfiguration())._asdict()
        self.greeting.set_result(
            Greeting(**{name: int(texts.get(name, default)) for name, default in own.items()})
        )

    async def __aexit__(self, *_: object) -> None:
        if self._look is not None:
            self._look.cancel()
        seconds = 0.0
        if self._stopped is None:
            self._write()
            self._writer.send_to_all([to_json(ConnectionLost(prefix=self._life))], self.now())
            self._stopped = "the engine is closed"
            seconds = _CLOSE_SECONDS
        await self._loop.run_in_executor(None, self._writer.close, seconds)
        await self._loop.run_in_executor(None, self._reader.close)

    # -- the interface

    async def submit(
        self, topic: str | None, command: AnyCommand | Publish, connection: str | None = None
    ) -> list[Row]:
        """See `Engine.submit`. The rows are the answers to an ADMIN command; another command has none, and is done on return."""
        if not isinstance(command, Admin):
            of_all = topic is None or topic.startswith(COORDINATOR_ASSIGN)
            path = _CONFIGURATION if topic is None or of_all else topic_path(topic, "/partitions")
            self._append(topic, to_json(command))
            await self.submit(None if of_all else topic, Admin(method="GET", path=path))
            return []
        if topic is None and self._writer.partitions > 1 and (refusal := await self._refusal(command)):
            fields = AdminResponseFields(status=refusal[0], response={"reason": refusal[1]})
            refused = AdminResponse(None, "", f"{command.method} {command.path}", fields)
            return [Row(-1, 0, self.now(), refused)]
        connection = self.new_connection()
        call = _Call(self._writer.partitions if topic is None else 1, self._loop.create_future())
        self._calls[connection] = call
        try:
            self._append(topic, to_json(msgspec.structs.replace(command, connection=connection)), call)
            return await asyncio.wait_for(call.done, ANSWER_SECONDS)
        except TimeoutError:
            raise NoAnswer(f"no answer within {ANSWER_SECONDS:.0f} s: {self._check}") from None
        finally:
            del self._calls[connection]

    def post(
        self,
        connection: str,
        topic: str | None,
        value: bytes,
        done: Callable[[], None] | None = None,
        answers: int = 0,
    ) -> None:
        """See `Engine.post`."""
        self._append(topic, value, None, done)

    def post_run(self, topic: str, commands: Sequence[Send | Ack], done: Callable[[int], None]) -> None:
        """See `Engine.post_run`. These commands are not decoded and checked again."""
        known = len(topic) <= LONGEST_TOPIC
        for each in commands:
            self._append(topic, to_json(each), None, partial(done, 1), each if known else None)

    def connect(self, deliver: Deliver) -> None:
        """See `Engine.connect`."""
        self._deliver = deliver

    def new_connection(self) -> str:
        """See `Engine.new_connection`."""
        self._connections += 1
        return f"{self._life}{self._connections}"

    def has_attached(self, connection: str, attached: Attached) -> bool | None:
        """See `Engine.has_attached`."""
        return None

    def entry(self, topic: str, ledger_id: int, entry_id: int) -> StoredEntry:
        """See `Engine.entry`. Only those that calls have asked for lately are here: other rows carry their entry."""
        try:
            return self._entries[topic, ledger_id, entry_id]
        except KeyError:
            raise EntryNotFound(f"{topic} {ledger_id}:{entry_id} did not come with the response") from None

    async def topics(
        self, namespace: str, connection: str | None = None, *, to_client: bool = False
    ) -> list[str]:
        """See `Engine.topics`."""
        path = f"/namespaces/{quote(namespace, safe='/')}/topics?mode=ALL"
        if not to_client:
            path += "&includeSystemTopic=true"
        answers = await self._answers(None, Admin(method="GET", path=path))
        lists: list[Any] = [each.fields.response for each in answers if each.fields.status == 200]
        names = {name for found in lists for name in found}
        return sorted(name for name in names if not (to_client and is_transaction_topic(name)))

    async def partitions(self, topic: str) -> int:
        """See `Engine.partitions`."""
        answers = await self._answers(topic, Admin(method="GET", path=topic_path(topic, "/partitions")))
        found: list[Any] = [each.fields.response for each in answers if each.fields.status == 200]
        return int(found[0]["partitions"]) if found else 0

    def now(self) -> int:
        """See `Engine.now`."""
        return self.clock.now()

    @property
    def unanswered(self) -> float:
        """See `Engine.unanswered`."""
        return 0.0 if self._unanswered_since is None else time.monotonic() - self._unanswered_since

    async def _refusal(self, command: Admin) -> tuple[int, str] | None:
        """Status and reason if some ingress partition would refuse a call that the others would carry out."""
        path = command.path.partition("?")[0]
        whole = topic_of(path) if path.endswith("/partitions") else None
        if command.method == "PUT" and whole is not None:
            (answer,) = await self._answers(whole, Admin(method="GET", path=path))
            return EXISTS if answer.fields.status == 200 else None
        if command.method != "DELETE" or flag(command.path, "force"):
            return None
        if (namespace := _NAMESPACE.fullmatch(path)) is not None:
            return NOT_EMPTY if await self.topics(unquote(namespace[1])) else None
        if whole is None:
            return None
        names = partitions_of(whole, await self.partitions(whole))
        calls = [self._answers(name, Admin(method="GET", path=topic_path(name, "/stats"))) for name in names]
        found: list[Any] = [each.fields.response for own in await asyncio.gather(*calls) for each in own]
        return IN_USE if any(map(_is_used, found)) else None

    async def _answers(self, topic: str | None, command: Admin) -> list[AdminResponse]:
        rows = await self.submit(topic, command)
        return [row.effect for row in rows if isinstance(row.effect, AdminResponse)]

    # -- to Kafka

    def _append(
        self,
        topic: str | None,
        value: bytes,
        call: _Call | None = None,
        done: Callable[[], None] | None = None,
        known: Send | Ack | None = None,
    ) -> None:
        if self._stopped is not None:
            raise EngineStopped(self._stopped)
        if topic is not None and topic.startswith(COORDINATOR_ASSIGN) and _TO_COORDINATOR.match(value):
            topic = None  # all ingress partitions have the coordinators
            asked = _read_request(value)
            self._asked_of_all[asked.connection, asked.request_id] = set()
            if len(self._asked_of_all) > _MOST_ASKED:
                del self._asked_of_all[next(iter(self._asked_of_all))]
        self._pending.append(_Pending(topic, value, call, done, known))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        if self._stopped is not None or not self._pending:
            return
        if not self._writer.count():
            self._scheduled = True
            threading.Thread(
                target=self._write_later, name="waiting for the ingress topic", daemon=True
            ).start()
            return
        pending, self._pending = self._pending, []
        now = self.now()
        to_all: list[_Pending] = []
        refused: list[Row] = []
        unknown = [each for each in pending if each.known is None]
        judged = iter(judge([each.topic for each in unknown], [each.value for each in unknown]))
        try:
            for each in pending:
                command = each.known or next(judged)
                if len(each.value) > self._writer.largest:
                    command = Refused("size", f"a command of {len(each.value):,} bytes: the ingress topic takes {self._writer.largest:,}")  # fmt: skip
                if isinstance(command, Refused):
                    # The query would refuse it, too, but nobody hears of what is in its quarantine.
                    row = Row(-1, 0, now, Quarantined(each.topic, command.rule, command.cause, each.value))
                    refused.append(row)
                    if each.call is not None:
                        each.call.end([row])
                    if each.done is not None:
                        each.done()
                    continue
                if each.topic is None:
                    to_all.append(each)
                elif each.done is None:
                    self._writer.send(each.topic, each.value, now)
                else:
                    self._writer.send(each.topic, each.value, now, partial(self._written, each.done))
                if not _UNASKED.match(each.value):
                    self._asked()
        except Exception as error:
            self._fail(error)
            return
        if to_all:
            written = self._writer.send_to_all([each.value for each in to_all], now)
            for each in to_all:
                if each.done is not None:
                    written.add_done_callback(partial(self._written, each.done))
        self._deliver(refused)

    # -- when Kafka has a command: in the writer's threads

    def _written(self, done: Callable[[], None], _: object = None) -> None:
        self._dones.append(done)
        if not self._calling:
            self._calling = True
            self._soon(self._call_dones)

    def _call_dones(self) -> None:
        self._calling = False
        while self._dones:
            self._loop.call_soon(self._dones.popleft())  # so that none keeps the others from being called

    # -- from Kafka: in the reader's thread

    def _is_own(self, connection: str) -> bool:
        if connection.startswith(self._life):
            return True
        name, _, rest = connection.partition(".")
        epoch = rest.partition(".")[0]
        if name == self._name and epoch.isdecimal() and int(epoch) > self._epoch:
            self._fail_soon(
                NameTaken(
                    f"another server with the name {self._name!r} has started before the same query, which closed this one's "
                    "connections: give each server a --name of its own"
                )
            )
        return False

    def _receive(self, response: Response) -> None:
        self._received.append(response)
        if not self._receiving:
            self._receiving = True
            self._soon(self._take)

    def _response_failed(self, error: Exception) -> None:
        why = str(error) if isinstance(error, MagnetarError) else repr(error)
        self._fail_soon(
            TopicsChanged(
                f"topic {self._responses.topic!r} of Kafka at {self._responses.bootstrap} can't be read: {why}"
            )
        )

    def _fail_soon(self, error: Exception) -> None:
        self._soon(lambda: self._fail(error))

    def _soon(self, function: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    # -- on the loop again

    def _take(self) -> None:
        self._receiving = False
        rows: list[Row] = []
        while self._received:
            partition, row, entry = self._received.popleft()
            effect: Any = row.effect
            if entry is not None:
                self._entries[effect.topic, effect.ledger_id, effect.entry_id] = entry
                if len(self._entries) > _ENTRIES:
                    del self._entries[next(iter(self._entries))]
            if (call := self._calls.get(effect.connection)) is not None:
                call.answer(partition, row)
            elif self._is_whole(partition, effect):
                rows.append(row)
        if self._silent:
            log.warning("magnetar: the query answers again")
        self._unanswered_since, self._silent = None, False
        if self._stopped is None:
            self._deliver(rows)

    def _is_whole(self, partition: int, effect: Any) -> bool:
        """Whether this is the whole answer: that of the last ingress partition, if all were asked. They say the same, and then it is done in all."""
        if not self._asked_of_all or not (getattr(effect, "topic", "") or "").startswith(COORDINATOR_ASSIGN):
            return True
        asked = effect.connection, getattr(effect, "request_id", None)
        if (answered := self._asked_of_all.get(asked)) is None:
            return True
        answered.add(partition)
        if len(answered) < self._writer.partitions:
            return False
        del self._asked_of_all[asked]
        return True

    def _asked(self) -> None:
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()

    @property
    def _check(self) -> str:
        ingress, responses = (
            f"kafka://{url.bootstrap}/{url.topic}" for url in (self._ingress, self._responses)
        )
        return f"check that `magnetar run --ingress {ingress} --responses {responses}` runs"

    def _write_later(self) -> None:
        """Write when Kafka knows the topic. Its client waits for that, which would keep the loop."""
        try:
            self._writer.wait_for_topic()
        except NotWritten as error:
            self._fail_soon(error)
        else:
            self._soon(self._write)

    def _look_after(self) -> None:
        self._look = self._loop.call_later(_LOOK_SECONDS, self._look_after)
        since = self._unanswered_since
        if since is not None and not self._silent and time.monotonic() - since > SILENCE_SECONDS:
            self._silent = True
            log.warning(
                "magnetar: the query has not answered for %.0f s, and clients wait: %s",
                SILENCE_SECONDS,
                self._check,
            )
        if (count := self._writer.count()) not in (0, self._writer.partitions):
            self._fail(
                TopicsChanged(
                    f"topic {self._ingress.topic!r} has {count} partitions, and had {self._writer.partitions} when the server "
                    "started: docs/operate/partitions.md says how to get more ingress partitions"
                )
            )

    def _fail(self, error: Exception) -> None:
        if self._stopped is not None:
            return
        self._stopped = str(error)
        for call in self._calls.values():
            call.fail(EngineStopped(str(error)))
        tell_failure(self.failed, error)


def _is_used(stats: dict[str, Any]) -> bool:
    """Do the stats of a topic have producers or consumers? No, if they say why there are none."""
    subscriptions = stats.get("subscriptions", {}).values()
    return bool(stats.get("publishers")) or any(each["consumers"] for each in subscriptions)


def _nobody(rows: Sequence[Row]) -> None:
    pass
