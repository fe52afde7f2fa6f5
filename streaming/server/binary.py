"""The binary protocol on sockets: one asyncio protocol per connection (mirrors ServerCnx).

What needs no broker state is answered at once. Everything else is a command for the engine, and so is the loss of a
connection.

A client that doesn't read holds up nobody else, and costs little memory: what is due to it waits as rows, of which a row is
encoded, with its payload, when the socket takes it. An entry that came with its row waits in a temporary file, once for all its
deliveries. All bytes to a client go through `Connection._write`. While more wait there than `Limits.buffered`, no frame of that client
is taken, so nothing that it asks for adds to them. What others send to its consumers does: rows and files are bounded in sum, and
beyond that, the connection is closed that has waited longest to get on.

A connection takes so many frames in its turn, and is sent so many rows, and then it is that of others: of whoever has had least (`Turns`). A FLOW of many
permits goes to the broker in parts, one at a time. Bytes that came and are not taken are counted over all connections, and so are those of commands that the broker has not
carried out.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from schemas import effects as e
from schemas.commands import Ack, Admin, ConnectionLost, MessageMetadata, Send, to_json
from schemas.effects import Row
from schemas.entries import EntryNotFound
from streaming.broker.admin_requests import topic_path
from streaming.broker.context import namespace_of
from streaming.broker.errors import BrokerError
from streaming.broker.names import complete, is_namespace_name
from streaming.broker.subscription.consumer import MAX_PERMITS
from streaming.broker.topic.abstract_topic import Attached
from streaming.metrics.server import Gauges, ServerMetrics
from streaming.protocol.codec import (
    CHECKSUM_BYTES,
    HEADROOM,
    Frame,
    FrameError,
    FrameReader,
    decode,
    encode,
    entry,
    send_receipt,
)
from streaming.protocol.frames import (
    CLOSES_OTHERS,
    HAS_FEATURES,
    KNOWN_SINCE,
    KNOWS_BATCHES,
    KNOWS_CHECKSUMS,
    MINUS_ONE,
    connected,
    frame,
    message_fields,
    metadata_fields,
    topics_of_namespace,
)
from streaming.protocol.plain import plain_command, sender
from streaming.protocol.requests import OF_THE_BROKER, TRANSACTIONS, Requests
from streaming.server import clients
from streaming.server.authentication import METHOD, REFRESH, NotAuthenticated, TokenAuthentication
from streaming.server.authorization import ERROR, Authorization
from streaming.server.clients import Clients
from streaming.server.engine import Engine, EngineStopped, Greeting, NoAnswer
from streaming.server.entry_spool import FILE_BYTES, EntrySpool, SpooledEntry
from streaming.server.fair_queue import FairQueue
from streaming.server.faults import Faults, FaultSpec, error_answer
from streaming.server.rarely import Rarely
from streaming.server.refusals import answer_of, refusal
from streaming.server.stalled import Stalled
from streaming.server.topic_watchers import TopicWatchers, Watching

log = logging.getLogger(__name__)

_NOTHING = frozenset({"PONG"})

_WATCHES = ("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_CLOSE")

_WRITE_AT_ONCE = 1 << 18

_SCHEMAS = 8
"""Commands of a connection that may be under way and give a schema."""

_TURN, _COST = 1000, 4
"""What a connection may take in its turn: so many plain frames or PINGs. Any other one counts as `_COST` of them."""

_SENT = 2000
"""Rows that a connection is sent in its turn, 5 to 10 µs each."""

_TURNS = 0.02
"""Seconds of a round of the loop in which frames are taken, and in which rows are sent that wait for a turn. The same for rows as they come."""

_TAKING, _TAKING_BYTE, _TURN_BYTES = 2e-5, 1e-7, 1 << 17
"""What a turn costs (s) before it is known: by the bytes that are there, of which it takes so many."""

FLOW_PART, LARGEST_PART = 2_000, 50_000
"""Permits that go to the broker in one FLOW. It sends all that they allow at once, 10 to 20 µs for each message, and nobody else has a turn
meanwhile. After a part that allowed more than there was to send, the next one is twice as large, up to `LARGEST_PART`: the log gets
fewer of them, and a consumer whose permits were below 0 gets no more at once than by a redelivery."""

_ROW = 300
"""Bytes of memory that a row takes which waits for a client, besides a schema."""

_HELLO = 1 << 16
"""Bytes of a largest frame before CONNECTED, and of answers that wait until then."""

_DESCRIBED = 10
"""Producers and consumers of a connection that are named where it is described."""

_OWN_REQUESTS = 1 << 62
"""The first number of our own requests: clients count from 0."""

_NO_ANSWER = 60.0
"""How long a command is timed (s) before another one is."""

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class BadLimit(ValueError):
    """A limit has a wrong name or value. The text says why."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What clients may use of a server. Values are positive."""

    connections: Count = 10_000
    """Open connections. Further ones are closed immediately."""
    buffered: Count = 4 << 20
    """Bytes that a connection has encoded and not sent. What is beyond that waits as rows, and nothing is read from it. The same
    for the bytes of its commands that the broker has not carried out."""
    unread: Count = 256 << 20
    """Bytes of all connections that came in frames which are not complete or not taken. Beyond that, the one that has waited longest
    for the rest of a frame is closed. The same for the bytes of all commands under way: beyond that, nothing is read."""
    waiting: Count = 10_000
    """Rows that wait for a client to read. While there are more, nothing is read from it."""
    held: Count = 512 << 20
    """Bytes of the rows that wait for clients to read, of all connections. Beyond that, the one is closed that has waited longest
    to get on."""
    spooled: Count = 512 << 20
    """Bytes in temporary files of entries that wait for clients to read, of all connections. Beyond that, the one is closed of those
    with such entries that has waited longest to get on."""
    commands: Count = 1_000
    """Commands of a connection that the broker has not carried out. While there are more, nothing is read from it."""
    opened: Count = 100_000
    """Producers and consumers of a connection. One more closes it."""
    names: Count = 256 << 20
    """Bytes of the frames with which all producers and consumers that are open were asked for: their names and properties are kept. A
    connection that asks for more is closed."""
    keep_alive: Seconds = 30.0
    """Seconds after which a connection is closed that has not sent CONNECT, or not answered PING."""


def limits(given: Mapping[str, str]) -> Limits:
    """Limits of which some are `given` as text. Raises `BadLimit`."""
    try:
        return msgspec.convert(given, Limits, strict=False)
    except msgspec.ValidationError as error:
        raise BadLimit(str(error)) from None


class BinaryServer:
    """The connections of a server. `service_url` is what LOOKUP answers."""

    def __init__(
        self,
        engine: Engine,
        service_url: str,
        limits: Limits | None = None,
        authentication: TokenAuthentication | None = None,
        authorization: Authorization | None = None,
    ) -> None:
        self.engine, self.service_url, self.limits = engine, service_url, limits or Limits()
        self.authentication, self.authorization = authentication, authorization
        self.connections: dict[str, Connection] = {}
        self.faults = Faults()
        self.bugs = Rarely(log)
        self._refusals = Rarely(log)
        self._exceeded: defaultdict[str, Rarely] = defaultdict(lambda: Rarely(log))
        """By limit."""
        self.clients = Clients()
        self.put_right: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        """The metadata of a message with times of the engine's clock, if that is another than the clients'."""
        self.matching = ThreadPoolExecutor(1, "topics-pattern")
        """Applies patterns of topics, one at a time: the worst of 50 characters takes 2.5 ms for a topic."""
        self.listing = asyncio.Lock()
        """Whoever lists topics: one in each round of the loop, however many clients ask."""
        self.watchers = TopicWatchers(engine, self.matching)
        self.under_way = self.names = 0
        """Bytes of commands that the broker has not carried out, and those of the frames with which what is open was asked for."""
        self.spool = EntrySpool(min(FILE_BYTES, self.limits.spooled // 16))
        self.is_full = False
        """Whether so much is under way that nothing more is read, until half of it is carried out."""
        self._unread = Stalled[Connection]()
        self._held = Stalled[Connection]()
        self._spooled = Stalled[Connection]()
        self.turns = Turns(self.bugs)
        self.metrics = ServerMetrics(self._gauges, engine.written)
        self._keep_alive: asyncio.TimerHandle | None = None
        if authorization is not None:
            authorization.on_change = self._check_permissions
        engine.connect(self.deliver)

    def start(self) -> None:
        """Begin to look after idle connections."""
        loop = asyncio.get_running_loop()
        self._keep_alive = loop.call_later(self.limits.keep_alive, self._look_after)

    def close(self) -> None:
        """Close all connections."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        self.watchers.stop()
        self.matching.shutdown(wait=False, cancel_futures=True)
        for connection in list(self.connections.values()):
            connection.close("the server stops")

    def _gauges(self) -> Gauges:
        known = list(self.connections.values())
        return Gauges(
            connections=len(known),
            half_open=sum(not each.ready for each in known),
            paused=sum(each.paused for each in known),
            opened=len(self.clients),
            under_way=sum(each.under_way for each in known),
            waiting=sum(each.waiting for each in known),
            watchers=sum(map(self.watchers.count, self.connections)),
            machine_ahead=self.engine.clock.machine_ahead / 1000,
            unanswered=self.engine.unanswered,
        )

    def new_connection(self) -> "Connection":
        """The asyncio protocol of a connection that a client opens."""
        return Connection(self)

    def described(self) -> list[str]:
        """The clients that have a connection: the version of each one's library, and some of what it has open there."""
        found, idle = [], []
        for name, each in self.connections.items():
            own = self.clients.names(name)
            more = [f"{len(own) - _DESCRIBED} more"] if len(own) > _DESCRIBED else []
            if own:
                found.append(f"{each.client}: {', '.join(own[:_DESCRIBED] + more)}")
            else:  # clients look topics up on a connection of their own
                idle.append(f"{each.client}: no producer or consumer")
        return found or idle

    def forget_connections(self) -> None:
        """Close all connections at once, without commands: the engine does not know them any more."""
        while self.connections:
            _, connection = self.connections.popitem()
            connection.forget()

    def hand_over(self, hold: Callable[..., asyncio.Protocol]) -> None:
        """Leave the connections of clients open, to protocols that `hold` makes, without commands: the engine does not know them any more. It
        is given the transport, the version of the client's library, and `opened`: whether the client has anything open there."""
        for name, connection in list(self.connections.items()):
            if connection.ready:
                opened = bool(self.clients.names(name))
                del self.connections[name]
                connection.hand_over(partial(hold, opened=opened))

    def release(self) -> None:
        """Let the commands go on that a fault has delayed until now."""
        for connection in list(self.connections.values()):
            connection.release()

    def deliver(self, rows: Sequence[Row]) -> None:
        """Send rows to the connections that they name."""
        coming = self.watchers.see(rows)
        of: defaultdict[str, list[e.Effect]] = defaultdict(list)
        for row in rows:
            effect: e.Effect | None = row.effect
            if isinstance(effect, e.Quarantined):
                effect = self._refused(effect)
            if effect is not None and (name := getattr(effect, "connection", None)):
                of[name].append(effect)
        began = time.monotonic()
        for name, effects in of.items():
            if (connection := self.connections.get(name)) is not None:
                try:
                    connection.deliver(effects, coming, send=time.monotonic() - began < _TURNS)
                except Exception as error:
                    self.bugs.error(
                        "rows can't be delivered to connection %s, which is a bug in Magnetar: %r",
                        name,
                        error,
                    )
                    connection.close("rows can't be delivered")
        self.turns.took(time.monotonic() - began)

    def exceeded(self, limit: str, what: str, *args: object) -> None:
        """Tell the operator, who may want another limit, what has become of a client because of one."""
        text = f"{what} (--limit {limit}=%d)"
        self._exceeded[limit].warning(text, *args, getattr(self.limits, limit))

    @property
    def unread(self) -> int:
        """Bytes of all connections that are not taken."""
        return self._unread.total

    @property
    def held(self) -> int:
        """Bytes of the rows of all connections that wait for clients to read."""
        return self._held.total

    def count_unread(self, connection: "Connection", size: int, *, goes_on: bool) -> None:
        """A connection has `size` bytes that are not taken; since now if it `goes_on`."""
        self._unread.count(connection, size, goes_on=goes_on)
        while size and self.unread > self.limits.unread:
            self._unread.first.drop(
                "clients have sent too much that is no whole frame, and it has for longest", "unread"
            )

    def count_waiting(self, connection: "Connection", size: int, spooled: int, *, goes_on: bool) -> None:
        """`size` bytes of rows wait for a client to read, `spooled` of the rows with an entry in a file; since now if it `goes_on`."""
        self._held.count(connection, size, goes_on=goes_on)
        self._spooled.count(connection, spooled, goes_on=goes_on)
        while size and self.held > self.limits.held:
            self._held.first.drop(
                "too much waits for clients that do not read, and for it for longest", "held"
            )
        while spooled and self._spooled.total and self.spool.size > self.limits.spooled:
            self._spooled.first.drop(
                "entries that wait for clients that do not read take too much room in temporary files, and it has not read for longest",
                "spooled",
            )

    def goes(self, size: int) -> None:
        """Commands of `size` bytes go to the broker. Once it has carried them out, `size` is negative."""
        self.under_way += size
        is_full = self.under_way > (self.limits.unread // 2 if self.is_full else self.limits.unread)
        if is_full != self.is_full:
            self.is_full = is_full
            for connection in list(self.connections.values()):
                connection.pace()

    def _check_permissions(self, namespace: str) -> None:
        for connection in list(self.connections.values()):
            try:
                connection.check_permissions(namespace)
            except EngineStopped as error:
                connection.close(str(error))

    def _refused(self, effect: e.Quarantined) -> e.Effect | None:
        """The answer to a command that the gate refuses."""
        answer = answer_of(effect, in_order=self.engine.answers_in_order)
        name = getattr(answer, "connection", None)
        if name in self.connections:
            self._refusals.warning(
                "connection %s: a command is refused: %s: %s", name, effect.rule, effect.cause
            )
        return answer

    def _look_after(self) -> None:
        self.start()  # first: whatever one connection raises, the others are looked after
        for name, connection in list(self.connections.items()):
            try:
                connection.keep_alive()
            except Exception as error:
                self.bugs.error(
                    "connection %s can't be kept alive, which is a bug in Magnetar: %r", name, error
                )
                connection.close("it can't be kept alive")


class Turns:
    """Connections with frames to take. They have `_TURNS` seconds in a round of the loop, and whoever has had least comes first."""

    def __init__(self, bugs: Rarely) -> None:
        """`bugs`: is told of them."""
        self._bugs = bugs
        self._waiting: FairQueue[Connection, None] = FairQueue()
        self._left = _TURNS
        self.busy = False
        """Whether what comes now has to wait for its turn."""

    def took(self, seconds: float) -> None:
        """A connection has taken frames as they came."""
        self._left -= seconds
        if self._left <= 0:
            self._schedule()

    def _schedule(self) -> None:
        if not self.busy:
            self.busy = True
            asyncio.get_running_loop().call_soon(self._run)

    def put(self, connection: "Connection", size: int) -> None:
        """A connection has so many bytes that are not taken."""
        self._waiting.put(connection, None, _TAKING + _TAKING_BYTE * min(size, _TURN_BYTES))
        self._schedule()

    def _run(self) -> None:
        self._left = _TURNS
        while self._waiting and self._left > 0:
            began = time.monotonic()
            taken = self._waiting.take()
            try:
                taken.key.next_turn()
            except Exception as error:
                self._bugs.error("a frame can't be taken, which is a bug in Magnetar: %r", error)
                taken.key.close("a frame can't be taken")
            took = time.monotonic() - began
            self._left -= took
            self._waiting.spent([(taken, took)])
        self.busy = False
        if self._waiting:
            self._schedule()


class _Timed(NamedTuple):
    """A command whose answer takes a time that is measured, `since` then (s): its request id, or its producer and sequence id."""

    key: int | tuple[int, int]
    since: float


class _Spooled(NamedTuple):
    """A message whose `entry` is in the spool of the server. `is_batch`: it is one for clients that know batches."""

    message: e.Message
    entry: SpooledEntry
    is_batch: bool


class _WithSchema(NamedTuple):
    """An answer with a schema of `size` bytes."""

    answer: e.GetSchemaResponse
    size: int


class _Opened(msgspec.Struct):
    """A producer or consumer that is open, or will be if the request that came last is granted: its id, and the bytes of the largest frame
    with which it was asked for."""

    request_id: int
    size: int = 0
    is_open: bool = False


class _Flow(NamedTuple):
    """A FLOW, of a frame of `size` bytes, of which `left` permits have not gone to the broker. `part` of them went last."""

    topic: str | None
    command: dict[str, Any]
    size: int
    left: int
    part: int = FLOW_PART


class _Delayed(NamedTuple):
    """A command that a fault holds `until` then (ms), the bytes of its frame, and what it asks for."""

    until: int
    topic: str | None
    value: bytes
    size: int
    asked: Attached | None = None


class Connection(asyncio.Protocol):
    """A client's connection."""

    _transport: asyncio.Transport

    def __init__(self, server: BinaryServer) -> None:
        self._server, self._engine, self._limits = server, server.engine, server.limits
        self._metrics = server.metrics
        self._timed: _Timed | None = None
        self.name = ""
        self._reader = FrameReader(_HELLO)
        self._untaken = self._turn_due = False
        self._requests = Requests()
        self._opened: dict[tuple[str, int], _Opened] = {}
        self._opening: dict[int, tuple[str, int]] = {}
        """The producers and consumers that these requests ask for."""
        self._revoking: dict[int, Attached] = {}
        """The producers and consumers that these requests of ours close."""
        self._asked_for: Counter[Attached] = Counter()
        """Those that the broker has yet to open or to refuse, and by how many requests."""
        self._own_requests = 0
        self._unsubscribing: dict[int, tuple[str, int]] = {}
        """The consumers that are gone if these requests succeed."""
        self._waiting: deque[_Due] = deque()
        self._schemas = self._spooled = 0
        """Bytes of schemas in the rows that wait, and the number of those whose entry is in the server's spool."""
        self._flow: _Flow | None = None
        """What is to go to the broker before anything else of this connection."""
        self._brought = 0
        """The messages that its consumer has got since a part of it went."""
        self._held: deque[tuple[e.Effect, asyncio.Future[None] | None]] = deque()
        """What is due to the client as soon as the futures before it are done, and its own."""
        self._delayed: deque[_Delayed] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._new = 0
        """Rows, of those that wait, which have their payloads."""
        self._ready = self._closing = self._known = False
        self._writable = self._reading = True
        self._heard, self._asked, self._overdue = True, False, False
        self._unsent: int | None = None
        """The bytes for a client with a full buffer that it had not read at the last look."""
        self._under_way = self._under_way_bytes = self._answers = 0
        self._asking = asyncio.Lock()
        self._drained = asyncio.Event()
        self._drained.set()
        self._expires: int | None = None
        self._principal = ""
        self._refreshes = self._challenged = False
        self._shown: dict[str, Any] = {}
        self._version = self._highest = 0
        """The highest version of the protocol that the client knows, and that the broker does."""
        self._greeting = False
        """Whether CONNECT came, and its answer waits until the broker's configuration is known."""

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connects."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._server.connections) >= self._limits.connections:
            self._server.exceeded("connections", "a connection is refused: there are enough")
            self._metrics.refused += 1
            self._closing = True
            transport.abort()
            return
        self.name = self._engine.new_connection()
        self._metrics.created += 1
        transport.set_write_buffer_limits(min(self._limits.buffered, _HELLO))
        self._server.connections[self.name] = self

    def data_received(self, data: bytes) -> None:
        """Bytes come from the client."""
        if self._closing:
            return
        self._heard = True
        self._metrics.received += len(data)
        turns = self._server.turns
        if turns.busy:
            self._turn(data, take=False)
        else:
            began = time.monotonic()
            self._turn(data)
            turns.took(time.monotonic() - began)

    def _turn(self, data: bytes, *, take: bool = True) -> None:
        """Take frames, as many as may be taken in one turn. The others wait for the next one."""
        before = self._reader.size
        try:
            if take and self._flow is None and not self._greeting:
                self._untaken = self._take(data)
            else:
                self._reader.keep(data)
                self._untaken = True
        except (FrameError, EngineStopped) as error:
            self.close(str(error))
        if self._closing:
            self._reader.clear()
        left = self._reader.size
        if before or left:
            # A client whose frames wait for their turn is not to blame for them.
            self._server.count_unread(self, left, goes_on=self._untaken or left < before + len(data))
        self.pace()

    def next_turn(self) -> None:
        """Go on with what is due to the client, and with what came."""
        self._turn_due = False
        if self._waiting and self._writable and not self._closing:
            self._send()
        if not (self._untaken and not self._closing and self._may_take()):
            return
        if self._flow is None:
            self._turn(b"")
            return
        if self._waiting:  # what the last part brought
            return
        flow = self._flow
        part = FLOW_PART if self._brought >= flow.part else min(2 * flow.part, LARGEST_PART)
        self._goes(1, flow.size)
        try:
            self._post_part(flow._replace(part=part))
        except EngineStopped as error:
            self.close(str(error))
        self.pace()

    def _take(self, data: bytes) -> bool:
        """Take frames that are complete with `data`. Plain commands of a producer or consumer that follow each other go on
        together. Returns whether there may be more of them."""
        server = self._server
        is_plain = self._known and not (server.put_right or server.faults or self._delayed)
        run: list[Send | Ack] = []
        size, left, pings = 0, _TURN, 0
        with closing(self._reader.feed(data)) as frames:
            try:
                for each in frames:
                    command = plain_command(each, self.name) if is_plain else None
                    if run and (command is None or sender(command) != sender(run[0])):
                        self._post_run(run, size)
                        run, size = [], 0
                    if command is not None:
                        run.append(command)
                        size += len(each)
                        left -= 1
                    elif each == _PING_FRAME:  # those that follow each other are answered together
                        pings += 1
                        left -= 1
                    else:
                        left -= _COST
                        if pings:
                            self._pong(pings)
                            pings = 0
                        if not self._receive(decode(each, self.name), len(each)):
                            return False
                    if left <= 0 or self._flow is not None or not self._may_take():
                        return True
            finally:
                if run:
                    self._post_run(run, size)
                if pings:
                    self._pong(pings)
        return False

    def _pong(self, pings: int) -> None:
        self._metrics.commands["PING"] += pings
        self._write(_PONG * pings)

    def _post_run(self, commands: list[Send | Ack], size: int) -> None:
        first, each = commands[0], size // len(commands)
        self._goes(len(commands), each * len(commands))
        if isinstance(first, Send):
            self._metrics.commands["SEND"] += len(commands)
            self._time((first.producer_id, first.sequence_id))
        else:
            self._metrics.commands["ACK"] += len(commands)
            self._time(first.request_id)
        topic = self._requests.topic_of(sender(first))
        self._engine.post_run(topic, commands, partial(self._carried_out, each))

    def pause_writing(self) -> None:
        """The client doesn't read fast enough."""
        self._writable = False
        self._drained.clear()
        self.pace()

    def resume_writing(self) -> None:
        """The client has read most of what was sent. The transport, which is writing, must not be written to before it is done."""
        self._writable, self._unsent = True, None
        self._drained.set()
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self._closing:
            self._send()
        if self._writable and not self._closing:
            self._server.watchers.resume(self.name)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed, by either side."""
        self._closing = True
        if self.name:
            self._metrics.closed += 1
        self._forget_waiting()
        for each in self._delayed:  # the broker never gets them
            self._carried_out(each.size)
        self._delayed.clear()
        self._reader.clear()
        self._server.count_unread(self, 0, goes_on=True)
        self._server.names -= sum(each.size for each in self._opened.values())
        self._opened.clear()
        self._server.clients.lost(self.name)
        self._server.watchers.lost(self.name)
        for task in self._tasks:
            task.cancel()
        if self._server.connections.pop(self.name, None) is not None:
            self._leave()

    def _leave(self) -> None:
        """The connection's producers and consumers leave."""
        if self._known:
            self._known = False
            try:
                self._engine.post(self.name, None, to_json(ConnectionLost(connection=self.name)))
            except EngineStopped:
                log.debug("%s is lost, and the engine has stopped", self.name)

    def _say_closed(self, why: str, limit: str | None) -> None:
        text = "connection %s is closed: %s"
        log.info(text, self.name, why)
        if limit is not None:
            self._server.exceeded(limit, text, self.name, why)

    def close(self, why: str, limit: str | None = None) -> None:
        """Close the connection, after what is written already. `limit`: the one of `Limits` that demands it."""
        if not self._closing:
            self._say_closed(why, limit)
            self._closing = True
            self._end()

    def _end(self) -> None:
        self._forget_waiting()
        self._transport.close()
        self._leave()  # a client with TLS is given 30 s to end the connection, too

    def drop(self, why: str, limit: str | None = None) -> None:
        """Close the connection at once, whatever waits for the client. `limit`: as of `close`."""
        self._say_closed(why, limit)
        self._closing = True
        self._reader.clear()
        self._server.count_unread(self, 0, goes_on=True)
        self._forget_waiting()
        self._transport.abort()

    def forget(self) -> None:
        """Close the connection at once, without a command."""
        self._known = False
        self._closing = True
        self._transport.abort()

    def hand_over(self, hold: Callable[[asyncio.Transport, str], asyncio.Protocol]) -> None:
        """Leave the connection open to another protocol, without a command."""
        transport, untaken = self._transport, self._reader.unread
        if self._closing or transport.is_closing():
            self.forget()
            return
        self._known = False
        self.connection_lost(None)
        protocol = hold(transport, self.client)
        transport.set_protocol(protocol)
        transport.resume_reading()
        protocol.data_received(untaken)

    def keep_alive(self) -> None:
        """A keep-alive interval is over (docs/rules/protocol.md §5)."""
        if self._closing:
            if self._overdue:
                self._transport.abort()  # the client does not read what was written before
            self._overdue = True
        elif not self._ready:
            self.close("the query has not said its configuration" if self._greeting else "no CONNECT came")
        elif self._asked and not self._heard and self._reading:
            self.drop("PING was not answered")
        elif not self._writable and not self._heard and self._unsent == self.buffered:
            self.drop("it has read nothing of what was sent to it")
        elif self._expires is not None and self._expires <= time.time():
            self._refresh()
        elif self._writable:
            self._heard, self._asked = False, True
            self._write(_PING)
        else:
            self._heard, self._unsent = False, self.buffered

    def _refresh(self) -> None:
        """The client's token has expired: ask for a new one, once."""
        if self._challenged or not self._refreshes:
            self.close("the token has expired")
            return
        self._challenged = True
        challenge = {"auth_method_name": METHOD, "auth_data": REFRESH}
        self._answer("AUTH_CHALLENGE", {"challenge": challenge, "protocol_version": self._highest})

    def _authenticate(self, fields: dict[str, Any]) -> bool:
        """Whether the token in the fields of a CONNECT or AUTH_RESPONSE is valid. If not, the connection ends."""
        if self._server.authentication is None:
            return True
        authorization = self._server.authorization
        anonymous = None if authorization is None else authorization.anonymous
        try:
            if anonymous is not None and fields.get("auth_method_name") != METHOD:
                self._expires, principal = None, anonymous
            else:
                self._expires = self._server.authentication.of_connect(fields)
                principal = self._server.authentication.principal(fields)
                if authorization is not None and not principal:
                    raise NotAuthenticated("its token has no role")
        except NotAuthenticated as error:
            self._refuse_authentication(f"it is not authenticated: {error}")
            return False
        if authorization is not None and "original_principal" in fields:
            self._answer("ERROR", {"request_id": MINUS_ONE, "error": ERROR, "message": "Invalid roles."})
            self.close("it is for another principal, as a proxy would be")
            return False
        if self._ready and self._principal and principal != self._principal:
            self.close("the new token has another principal")
            return False
        if not self._ready:
            self._principal = principal
        self._challenged = False
        return True

    def _authenticate_again(self, response: dict[str, Any]) -> None:
        """The client answers a challenge. Nobody asked it if there is no authentication."""
        if self._server.authentication is None:
            self._refuse_authentication("AUTH_RESPONSE came without authentication")
        else:
            self._authenticate(response)

    def _refuse_authentication(self, why: str) -> None:
        message = {"error": "AuthenticationError", "message": "Failed to authenticate"}
        self._answer("ERROR", {"request_id": MINUS_ONE, **message})
        self.close(why)

    @property
    def buffered(self) -> int:
        """Bytes that are encoded and not sent."""
        return self._transport.get_write_buffer_size()

    @property
    def held(self) -> int:
        """Bytes of payloads in the rows that wait."""
        return sum(len(getattr(each, "payload", None) or b"") for each in self._waiting)

    @property
    def spooled(self) -> int:
        """Rows that wait whose entry is in a temporary file."""
        return self._spooled

    @property
    def ready(self) -> bool:
        """Whether the client has sent CONNECT."""
        return self._ready

    @property
    def client(self) -> str:
        """The version of the client's library."""
        return self._shown.get("clientVersion") or "an unknown client"

    @property
    def writable(self) -> bool:
        """Whether the client reads what is sent to it."""
        return self._writable

    @property
    def under_way(self) -> int:
        """Commands that the broker has not carried out."""
        return self._under_way

    @property
    def waiting(self) -> int:
        """Rows that wait for the client to read."""
        return len(self._waiting)

    @property
    def paused(self) -> bool:
        """Whether nothing is read from the client, because too much waits for it."""
        return not self._reading

    # -- from the client

    def _receive(self, asked: Frame, size: int) -> bool:
        """Take a frame of `size` bytes. Returns whether the next one can be taken."""
        cmd = asked.cmd
        self._metrics.commands[cmd] += 1
        if cmd == "PING":
            self._write(_PONG)
        elif not self._ready:
            if cmd != "CONNECT":
                self.close(f"{cmd} came before CONNECT")
                return False
            if not self._authenticate(asked.fields):
                return False
            if self._engine.greeting.done():
                self._greet(asked.fields, self._engine.greeting.result())
            else:
                self._begin(size, self._greet_later, asked.fields)
                self._greeting = True
        elif self._server.authorization is not None and self._may_not(self._server.authorization, asked):
            pass
        elif cmd in OF_THE_BROKER:
            self._ask_broker(asked, size)
        elif cmd == "AUTH_RESPONSE" and "response" in asked.fields:
            self._authenticate_again(asked.fields["response"])
        elif cmd == "GET_TOPICS_OF_NAMESPACE" and is_namespace_name(asked.fields["namespace"]):
            self._begin(size, self._list_topics, asked.fields)
        elif cmd in _WATCHES and self._highest >= HAS_FEATURES:
            self._watch(asked, size)
        elif cmd == "CONSUMER_STATS":
            topic = self._requests.topic_of_consumer(asked.fields["consumer_id"])
            self._begin(size, partial(self._consumer_stats, topic), asked.fields)
        elif cmd not in _NOTHING:
            self.close(f"{cmd} is not a client's command")
        return not self._closing

    def _may_not(self, authorization: Authorization, asked: Frame) -> bool:
        """Refuse a frame if the client's role may not ask for that. Returns whether it is."""
        try:
            authorization.check_frame(self._principal, asked)
        except BrokerError as error:
            fields = asked.fields
            text = str(error)
            answer = refusal(asked.cmd, fields.get("topic", ""), self.name, fields["request_id"], error.code, text)  # fmt: skip
            self._deliver([answer], True)
            return True
        return False

    def check_permissions(self, namespace: str) -> None:
        """Close the producers and consumers in a namespace that the client may no longer have (docs/rules/authorization.md §5)."""
        authorization = self._server.authorization
        if authorization is None or self._closing:
            return
        # The broker knows best: a client may use an id for several, and the number of a request, too.
        coming = [each for each in self._asked_for if namespace_of(each.topic) == namespace]
        closing = set(self._revoking.values())
        for each in dict.fromkeys((*authorization.attached(self.name, namespace), *coming)):
            if each in closing or authorization.may_keep(self._principal, each):
                continue
            self._own_requests += 1
            request_id = _OWN_REQUESTS + self._own_requests
            self._revoking[request_id] = each
            kind = _kind(each)
            command = {"command": f"CLOSE_{kind.upper()}", "connection": self.name, f"{kind}_id": each.id, "request_id": request_id}  # fmt: skip
            self._goes(1, 0)
            self._post_in_turn(each.topic, _json(command), 0)

    async def _greet_later(self, fields: dict[str, Any]) -> None:
        """Nothing more is read from the client meanwhile."""
        greeting = await asyncio.shield(self._engine.greeting)
        self._greeting = False
        if not self._closing:
            self._greet(fields, greeting)

    def _greet(self, fields: dict[str, Any], greeting: Greeting) -> None:
        """Answer a CONNECT with these fields."""
        self._ready = True
        self._highest, size = greeting
        self._reader.largest = size + HEADROOM
        self._transport.set_write_buffer_limits(self._limits.buffered)
        self._metrics.accepted += 1
        self._refreshes = fields.get("feature_flags", {}).get("supports_auth_refresh", False)
        address = self._transport.get_extra_info("peername")
        version = fields.get("client_version", "")
        self._shown = clients.connection(address, version, self._engine.now())
        self._version = fields.get("protocol_version", 0)
        self._answer("CONNECTED", connected(fields, size, highest=self._highest, watches_topics=True))

    def _ask_broker(self, asked: Frame, size: int) -> None:
        if not asked.intact and asked.cmd == "SEND":  # what follows another command is nothing to anybody
            fields = {name: asked.fields[name] for name in ("producer_id", "sequence_id")}
            text = "Checksum failed on the broker"
            # after the receipts of what was sent before
            asyncio.get_running_loop().call_soon(
                self._answer, "SEND_ERROR", {**fields, "error": "ChecksumError", "message": text}
            )
            return
        is_send, fields = asked.cmd == "SEND", asked.fields
        self._time((fields["producer_id"], fields["sequence_id"]) if is_send else fields.get("request_id"))
        if is_send:
            if asked.metadata is None:
                raise FrameError("SEND without a message")
            topic, command = self._requests.command(asked)
            if self._server.put_right is not None:
                command["metadata"] = self._server.put_right(command["metadata"])
        else:
            if self._is_used(asked):
                return
            topic, command = self._requests.command(asked)
            if asked.cmd in TRANSACTIONS:
                self._sign(command)
            if len(self._requests) > self._limits.opened:
                self.close("it has too many producers and consumers", "opened")
                return
            self._note(asked, topic, command, size)
            if self._closing:
                return
        self._known = True
        fault = self._server.faults.hit(topic, command)
        if fault is not None and self._fails(fault, topic, command, size, _asked_for(topic, asked)):
            return
        self._goes(1, size)
        if (
            not self._delayed
            and asked.cmd == "FLOW"
            and FLOW_PART < (permits := fields["messagePermits"]) <= MAX_PERMITS
        ):
            self._post_part(_Flow(topic, command, size, permits))
        else:
            self._post_in_turn(topic, _json(command), size, self._answers_to(asked), _asked_for(topic, asked))

    def _sign(self, command: dict[str, Any]) -> None:
        """Say in a request to a coordinator who asks: transactions have owners, if there is authentication. A superuser may use all."""
        authorization, kind = self._server.authorization, command["command"]
        may_use_all = authorization is not None and authorization.is_superuser(self._principal)
        if self._principal and kind != "TC_CLIENT_CONNECT_REQUEST" and (kind == "NEW_TXN" or not may_use_all):
            command["principal"] = self._principal

    def _is_used(self, asked: Frame) -> bool:
        """Refuse a producer or consumer whose id another topic's has. Pulsar opens none, either. Returns whether it is."""
        fields = asked.fields
        kind = {"PRODUCER": "producer", "SUBSCRIBE": "consumer"}.get(asked.cmd, "")
        key = kind, fields.get(f"{kind}_id", -1)
        if key not in self._opened or self._requests.topic_of(key) == (topic := complete(fields["topic"])):
            return False
        text = f"{kind.capitalize()} is already present on the connection"
        answer = refusal(asked.cmd, topic, self.name, fields["request_id"], "ServiceNotReady", text)
        self._deliver([answer], True)
        return True

    def _time(self, key: int | tuple[int, int] | None) -> None:
        """Find out how long the answer takes, if there will be one, and no other one is awaited."""
        now = time.monotonic()
        if key is not None and (self._timed is None or self._timed.since < now - _NO_ANSWER):
            self._timed = _Timed(key, now)

    def _answered(self, cmd: str, fields: dict[str, Any]) -> None:
        """An answer goes to the client."""
        send, request_id = cmd in ("SEND_RECEIPT", "SEND_ERROR"), fields.get("request_id", -1)
        self._timed_until(
            (fields["producer_id"], fields["sequence_id"]) if send else request_id,
            published=cmd == "SEND_RECEIPT",
        )
        if cmd in ("CLOSE_PRODUCER", "CLOSE_CONSUMER"):
            kind = "producer" if cmd == "CLOSE_PRODUCER" else "consumer"
            self._gone((kind, fields[f"{kind}_id"]))
        elif (key := self._unsubscribing.pop(request_id, None)) is not None:
            if cmd == "SUCCESS" and not self._is_there(key):
                self._forget(key)
        elif (key := self._opening.pop(request_id, None)) is not None and key in self._opened:
            opened = self._opened[key]
            if cmd != "ERROR":
                opened.is_open = True
            elif not opened.is_open and opened.request_id == request_id and not self._is_there(key):
                self._forget(key)

    def _is_there(self, key: tuple[str, int]) -> bool:
        """Whether the broker has a producer or consumer, although an answer seems to say that it has not: a client may give several requests
        the same number."""
        kind, number = key
        attached = Attached(self._requests.topic_of(key), number, None if kind == "producer" else "")
        return bool(self._engine.has_attached(self.name, attached))

    def _gone(self, key: tuple[str, int]) -> None:
        """A producer or consumer is no longer there."""
        if (opened := self._opened.pop(key, None)) is not None:
            self._server.names -= opened.size
            self._opening.pop(opened.request_id, None)
        self._server.clients.closed(self.name, *key)

    def _forget(self, key: tuple[str, int]) -> None:
        """A producer or consumer is no longer there, and what names it has no topic."""
        self._gone(key)
        self._requests.forget(key)

    def _timed_until(self, key: int | tuple[int, int] | None, *, published: bool = False) -> None:
        """The answer to a command goes to the client. `published`: it is a SEND_RECEIPT."""
        if self._timed is not None and self._timed.key == key:
            took = time.monotonic() - self._timed.since
            self._metrics.answers.add(took)
            if published:
                self._metrics.publishes.add(took)
            self._timed = None

    def _note(self, asked: Frame, topic: str | None, command: dict[str, Any], size: int) -> None:
        """Keep what stats show of producers and consumers, and the broker does not know."""
        kind = "producer" if "producer_id" in asked.fields else "consumer"
        key = kind, asked.fields.get(f"{kind}_id", -1)
        if asked.cmd in ("PRODUCER", "SUBSCRIBE") and topic is not None:
            opened = self._opened.setdefault(key, _Opened(0))
            opened.request_id = request_id = asked.fields["request_id"]
            self._opening[request_id] = key
            former = opened.size  # if that is open, the broker keeps its names
            opened.size = max(size, former)
            self._server.names += opened.size - former
            if self._server.names > self._limits.names:
                self.close("all producers and consumers have too many bytes of names and properties", "names")
            else:
                self._server.clients.opened(self.name, self._shown, topic, command)
        elif asked.cmd in ("CLOSE_PRODUCER", "CLOSE_CONSUMER"):
            self._gone(key)
        elif asked.cmd == "UNSUBSCRIBE":
            self._unsubscribing[asked.fields["request_id"]] = key

    def _answers_to(self, asked: Frame) -> int:
        """How many messages the broker may send because of a command, or one more than may wait. A command with a schema counts so that
        `_SCHEMAS` of them are under way at most: the schema may have to be compared with many others."""
        most = self._limits.waiting + 1
        if "schema" in asked.fields:
            return most // _SCHEMAS
        if asked.cmd == "FLOW":
            return min(int(asked.fields["messagePermits"]), most)
        if asked.cmd == "REDELIVER_UNACKNOWLEDGED_MESSAGES":  # of these, or of all
            return min(len(asked.fields.get("message_ids", ())) or most, most)
        return 0

    def _post_part(self, flow: _Flow) -> None:
        """Post a part of a FLOW. The others go once what it brings is delivered."""
        part = min(flow.left, flow.part)
        left = flow.left - part
        self._flow, self._brought = flow._replace(left=left) if left else None, 0
        # So much that nothing more of this connection goes meanwhile.
        answers = self._limits.waiting + 1
        self._post(flow.topic, _json({**flow.command, "messagePermits": part}), flow.size, answers)

    def _post_in_turn(
        self, topic: str | None, value: bytes, size: int, answers: int = 0, asked: Attached | None = None
    ) -> None:
        """Post a command now, or behind those that a fault delays. `asked`: what it asks for."""
        if self._delayed:
            self._delay(self._delayed[-1].until, topic, value, size, asked)
            return
        if asked is not None:
            self._asked_for[asked] += 1
        self._post(topic, value, size, answers, asked)

    def _delay(self, until: int, topic: str | None, value: bytes, size: int, asked: Attached | None) -> None:
        if asked is not None:
            self._asked_for[asked] += 1
        self._delayed.append(_Delayed(until, topic, value, size, asked))

    def _post(
        self, topic: str | None, value: bytes, size: int, answers: int = 0, asked: Attached | None = None
    ) -> None:
        self._answers += answers
        self._engine.post(self.name, topic, value, partial(self._delivered, size, answers, asked), answers)

    def _delivered(self, size: int, answers: int, asked: Attached | None) -> None:
        self._answers -= answers
        if asked is not None:
            self._asked_for[asked] -= 1
            if not self._asked_for[asked]:
                del self._asked_for[asked]
        self._carried_out(size)

    def _goes(self, commands: int, size: int) -> None:
        """So many commands, of `size` bytes in all, go to the broker."""
        self._under_way += commands
        self._under_way_bytes += size
        self._server.goes(size)

    def _carried_out(self, size: int, commands: int = 1) -> None:
        """So many commands, of `size` bytes each, are carried out."""
        self._under_way -= commands
        self._under_way_bytes -= size * commands
        self._server.goes(-size * commands)
        if not self._reading:
            self.pace()

    def _may_take(self) -> bool:
        """Whether one more frame may be taken: the client reads what is due to it, and has not sent more than can be done."""
        limits, server = self._limits, self._server
        return (
            self._writable
            and not self._greeting
            and len(self._waiting) + self._answers <= limits.waiting
            and self._under_way <= limits.commands
            and self._under_way_bytes <= limits.buffered
            and not server.is_full
        )

    def pace(self) -> None:
        """Take frames that have come already, or read from the client, or neither."""
        if self._closing:
            return
        may_take = self._may_take()
        may_send = self._writable and bool(self._waiting)
        if (may_send or (may_take and self._untaken)) and not self._turn_due:
            self._turn_due = True
            self._server.turns.put(self, self._reader.size)
        if (wanted := may_take and not self._untaken) == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _fails(
        self,
        fault: FaultSpec,
        topic: str | None,
        command: dict[str, Any],
        size: int,
        asked: Attached | None,
    ) -> bool:
        """Do what a fault says. Returns whether the broker gets the command no more, or later."""
        match fault.action:
            case "disconnect":
                self.close("a fault was asked for")
            case "delay":
                self._goes(1, size)
                until = self._engine.now() + fault.delay
                self._delay(until, topic, _json(command), size, asked)
                asyncio.get_running_loop().call_later(fault.delay / 1000, self.release)
            case "error" if command["command"] == "SEND":
                command["fails"] = True
                return False
            case "error":
                self._answer(*error_answer(fault, command))
        return True

    def release(self) -> None:
        """Let the commands go on that a fault has delayed until now."""
        now = self._engine.now()
        while self._delayed and self._delayed[0].until <= now and not self._closing:
            _, topic, value, size, asked = self._delayed.popleft()
            self._post(topic, value, size, asked=asked)

    def _begin(
        self, size: int, answer: Callable[[dict[str, Any]], Coroutine[Any, Any, None]], asked: dict[str, Any]
    ) -> None:
        """Answer a frame of `size` bytes when the engine has answered ours."""
        self._goes(1, size)
        task = asyncio.get_running_loop().create_task(self._in_turn(answer, asked))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._answered_by(task, size))

    async def _in_turn(
        self, answer: Callable[[dict[str, Any]], Coroutine[Any, Any, None]], asked: dict[str, Any]
    ) -> None:
        """Answer when those before are answered, and the client has read them: an answer may be much larger than its question."""
        async with self._asking:
            await self._drained.wait()
            await answer(asked)

    def _answered_by(self, task: asyncio.Task[None], size: int) -> None:
        self._tasks.discard(task)
        self._carried_out(size)
        if not task.cancelled() and (error := task.exception()) is not None and not self._closing:
            self._server.bugs.error("a command can't be answered, which is a bug in Magnetar: %r", error)
            self.close("a command can't be answered")

    def _watch(self, asked: Frame, size: int) -> None:
        """Begin or end to watch the topics of a namespace."""
        watchers = self._server.watchers
        if asked.cmd == "WATCH_TOPIC_LIST_CLOSE":
            watchers.close(self.name, asked.fields["watcher_id"])
            self._answer("SUCCESS", {"request_id": asked.fields["request_id"]})
        elif watchers.count(self.name) >= self._limits.opened:
            self.close("it has too many topic list watchers", "opened")
        else:
            watching = Watching(self.name, self._answer, lambda: self._writable, self.drop)
            self._begin(size, partial(watchers.watch, watching), asked.fields)

    async def _consumer_stats(self, topic: str | None, fields: dict[str, Any]) -> None:
        """Answer CONSUMER_STATS from the stats of the consumer's topic."""
        number, request = fields["consumer_id"], {"request_id": fields["request_id"]}
        if topic is None:
            self.close(f"CONSUMER_STATS of consumer {number}, which is not open")
            return
        call = Admin(method="GET", path=topic_path(topic, "/stats"))
        try:
            rows = await self._engine.submit(topic, call, self.name)
        except (EngineStopped, NoAnswer) as error:
            refusal = {"error_code": "ServiceNotReady", "error_message": str(error)}
            self._answer("CONSUMER_STATS_RESPONSE", {**request, **refusal})
            return
        answers = [row.effect for row in rows if isinstance(row.effect, e.AdminResponse)]
        stats: Any = answers[0].fields.response if answers and answers[0].fields.status == 200 else {}
        shown = self._server.clients.consumer_stats(self.name, number, stats)
        if shown is None:
            missing = {"error_code": "ConsumerNotFound", "error_message": f"Consumer {number} not found"}
            self._answer("CONSUMER_STATS_RESPONSE", {**request, **missing})
        else:
            self._answer("CONSUMER_STATS_RESPONSE", {**request, **shown})

    async def _list_topics(self, fields: dict[str, Any]) -> None:
        try:
            topics = await self._engine.topics(fields["namespace"], self.name, to_client=True)
        except (EngineStopped, NoAnswer) as error:
            refusal = {"error": "ServiceNotReady", "message": str(error)}
            self._answer("ERROR", {"request_id": fields["request_id"], **refusal})
            return
        if "topics_pattern" in fields:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._server.matching, topics_of_namespace, fields, topics)
            async with self._server.listing:
                self._answer(*answer)
        else:
            async with self._server.listing:
                self._answer(*topics_of_namespace(fields, topics))

    # -- to the client

    def _refuse(self, asked: Frame, text: str) -> None:
        fields = {"request_id": asked.fields["request_id"], "error": "NotAllowedError", "message": text}
        self._answer("ERROR", fields)

    def _answer(self, cmd: str, fields: dict[str, Any]) -> None:
        self._answered(cmd, fields)
        self._write(encode(cmd, fields))

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._metrics.sent += len(data)
            self._transport.write(data)

    def deliver(
        self, effects: Sequence[e.Effect], coming: Mapping[str, asyncio.Future[None]], *, send: bool = True
    ) -> None:
        """Send what `effects` say, as soon as the client reads. Without `send`: when it is the connection's turn. The producer of a topic
        that is `coming` is told that it is ready when its future is done. What follows waits, too."""
        if coming or self._held:
            effects = self._hold(effects, coming)
        if effects:
            self._deliver(effects, send)

    def _hold(
        self, effects: Sequence[e.Effect], coming: Mapping[str, asyncio.Future[None]]
    ) -> Sequence[e.Effect]:
        """Hold what has to wait. Returns the effects before it."""
        before: list[e.Effect] = []
        for each in effects:
            until = coming.get(each.topic) if isinstance(each, e.ProducerSuccess) else None
            if until is None and not self._held:
                before.append(each)
            elif not self._closing:
                self._held.append((each, until))
                if until is not None:
                    until.add_done_callback(lambda _: self._let_go())
        return before

    def _let_go(self) -> None:
        """Deliver what need not wait any more."""
        due = []
        while self._held and ((until := self._held[0][1]) is None or until.done()):
            due.append(self._held.popleft()[0])
        if due:
            self._deliver(due, True)

    def _deliver(self, effects: Collection[e.Effect], send: bool) -> None:
        if self._closing:
            return
        if self._flow is not None:
            consumer = self._flow.command["consumer_id"]
            self._brought += sum(
                each.messages for each in effects if type(each) is e.Message and each.consumer_id == consumer
            )
        self._waiting.extend(effects)
        self._new += len(effects)
        if send or not self._writable:
            self._send()
        else:
            self._count_waiting(goes_on=True)
            self.pace()

    def _lay_aside(self) -> None:
        """The client does not read: let go of the payloads of the rows that wait."""
        last = [self._waiting.pop() for _ in range(self._new)]
        self._new = 0
        try:
            self._waiting.extend(map(self._without_payload, reversed(last)))
        except OSError as error:
            log.error("what waits for connection %s can't be put into a temporary file: %s", self.name, error)
            self._closing = True
            self._forget_waiting()
            self._transport.abort()

    def _without_payload(self, effect: "_Due") -> "_Due":
        if isinstance(effect, e.SendReceipt):
            return effect._replace(metadata=None, payload=None)
        if isinstance(effect, e.Message) and effect.metadata is not None:
            kept = self._server.spool.put(effect.metadata, effect.payload or b"")
            self._spooled += 1
            return _Spooled(effect._replace(metadata=None, payload=None), kept, _is_batch(effect.metadata))
        if isinstance(effect, e.GetSchemaResponse) and effect.fields.schema is not msgspec.UNSET:
            size = len(effect.fields.schema.schema_data)
            self._schemas += size
            return _WithSchema(effect, size)
        return effect

    def _count_waiting(self, *, goes_on: bool) -> None:
        size = _ROW * len(self._waiting) + self._schemas
        self._server.count_waiting(self, size, self._spooled, goes_on=goes_on)

    def _forget_waiting(self) -> None:
        """Nothing more goes to the client."""
        for each in self._waiting if self._spooled else ():
            if isinstance(each, _Spooled):
                self._server.spool.drop(each.entry)
        self._waiting.clear()
        self._held.clear()
        self._schemas = self._spooled = self._new = 0
        self._count_waiting(goes_on=True)

    def _send(self) -> None:
        waiting = self._waiting
        parts: list[bytes] = []
        size, left, before = 0, _SENT, len(waiting)
        while waiting and left and self._writable and not self._closing:
            left -= 1
            try:
                data = self._encoded(waiting.popleft())
            except OSError as error:
                log.error(
                    "what waits for connection %s can't be read from a temporary file: %s", self.name, error
                )
                self._closing = True
                data = b""
            except Exception as error:
                self._server.bugs.error(
                    "an answer to connection %s can't be encoded, which is a bug in Magnetar: %r",
                    self.name,
                    error,
                )
                self._closing = True
                data = b""
            parts.append(data)
            size += len(data)
            if size >= _WRITE_AT_ONCE or not waiting or not left or self._closing:
                self._write(b"".join(parts))
                parts.clear()
                size = 0
                if self._transport.is_closing():  # nobody reads any more: its loss is about to be told
                    self._closing = True
        if self._closing:
            self._end()
            return
        self._new = min(self._new, len(waiting))
        if self._new and not self._writable:
            self._lay_aside()
        if before:
            self._count_waiting(goes_on=self._writable or len(waiting) < before)
        self.pace()

    def _encoded(self, effect: "_Due") -> bytes:
        """The frame of an effect, or nothing if there is none."""
        if isinstance(effect, _Spooled):
            self._spooled -= 1
            return self._message(effect.message, self._server.spool.take(effect.entry), effect.is_batch)
        if isinstance(effect, _WithSchema):
            self._schemas -= effect.size
            effect = effect.answer
        if type(effect) is e.SendReceipt:
            return self._receipt(effect)
        if isinstance(effect, e.Message):
            return self._stored_message(effect)
        if isinstance(effect, e.ProducerSuccess):
            self._server.clients.named(effect)
        found = frame(effect, _no_entries)
        if found is None or self._version < KNOWN_SINCE.get(found.cmd, 0):
            return b""
        if self._version < CLOSES_OTHERS.get(found.cmd, 0):
            self._say_closed(f"its protocol version has no {found.cmd}", None)
            self._closing = True
            return b""
        if found.cmd == "_TCP_CLOSE":
            assert isinstance(effect, e.CloseConnection)
            self._say_closed(effect.cause, None)
            self._closing = True
            return b""
        if (closed := self._revoking.pop(found.fields.get("request_id", -1), None)) is not None:
            if found.cmd != "SUCCESS":  # it is closed already
                return b""
            kind = _kind(closed)
            found = Frame(self.name, f"CLOSE_{kind.upper()}", {f"{kind}_id": closed.id, "request_id": MINUS_ONE})  # fmt: skip
        if found.cmd == "LOOKUP_RESPONSE" and "error" not in found.fields:
            url = self._server.service_url
            name = "brokerServiceUrlTls" if url.startswith("pulsar+ssl:") else "brokerServiceUrl"
            found.fields[name] = url
        self._answered(found.cmd, found.fields)
        return encode(found.cmd, found.fields)

    def _receipt(self, effect: e.SendReceipt) -> bytes:
        highest = effect.highest_sequence_id
        if effect.producer_id is None:  # the short form of publishing
            return b""
        sequence_id = effect.sequence_id & MINUS_ONE
        self._timed_until((effect.producer_id, sequence_id), published=True)
        return send_receipt(
            effect.producer_id, sequence_id, effect.ledger_id & MINUS_ONE, effect.entry_id & MINUS_ONE,
            MINUS_ONE if highest is None else highest & MINUS_ONE,
        )  # fmt: skip

    def _stored_message(self, effect: e.Message) -> bytes:
        if effect.metadata is None:
            try:
                stored = self._engine.entry(effect.topic, effect.ledger_id, effect.entry_id)
            except EntryNotFound:  # deleted since: the client was too slow
                return b""
            except EngineStopped:  # the store is damaged
                self._closing = True
                return b""
            metadata, payload = stored.metadata, stored.payload
        else:
            metadata, payload = effect.metadata, effect.payload or b""
        return self._message(effect, entry(metadata_fields(metadata), payload), _is_batch(metadata))

    def _message(self, effect: e.Message, tail: bytes, is_batch: bool) -> bytes:
        if self._version < KNOWS_BATCHES and is_batch:
            log.info("connection %s is closed: its protocol version has no batches", self.name)
            self._closing = True
            return b""
        return encode(
            "MESSAGE",
            message_fields(effect),
            tail[CHECKSUM_BYTES if self._version < KNOWS_CHECKSUMS else 0 :],
        )


_Due = e.Effect | _Spooled | _WithSchema
"""What waits for a client to read."""


def _asked_for(topic: str | None, asked: Frame) -> Attached | None:
    """The producer or consumer that a frame asks for. None: it asks for none."""
    if topic is None or asked.cmd not in ("PRODUCER", "SUBSCRIBE"):
        return None
    fields = asked.fields
    if asked.cmd == "PRODUCER":
        return Attached(topic, fields["producer_id"], None)
    return Attached(topic, fields["consumer_id"], fields["subscription"])


def _kind(attached: Attached) -> str:
    return "producer" if attached.subscription is None else "consumer"


def _is_batch(metadata: MessageMetadata) -> bool:
    return (metadata.num_messages_in_batch or 1) > 1


def _no_entries(*position: object) -> Any:
    raise AssertionError("a message is encoded elsewhere")


_PING, _PONG = encode("PING", {}), encode("PONG", {})
_PING_FRAME = _PING[4:]
_json = msgspec.json.Encoder().encode
