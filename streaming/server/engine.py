"""What servers need of whatever folds the commands: an engine.

An engine runs on one asyncio loop. Nothing here is safe to call from another thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, Protocol, Self

from schemas.commands import Ack, AnyCommand, MessageMetadata, Publish, Send
from schemas.effects import Row
from streaming.broker.config import ServiceConfiguration
from streaming.broker.topic.abstract_topic import Attached
from streaming.metrics.durations import Durations
from streaming.server.clock import Clock


class EngineStopped(RuntimeError):
    """The engine takes no more commands. The text says why."""


class NoAnswer(RuntimeError):
    """Whatever folds the commands has not answered one for a long time. The text says what to check."""


def tell_failure(failed: "asyncio.Future[NoReturn]", error: BaseException) -> None:
    """Have `Engine.failed` say why the engine stopped, if it doesn't yet.

    Commands in flight and later ones raise it, so a caller that awaits those alone has been told. Without a look
    at the error here, asyncio would log it once more, as never retrieved, whenever the engine is collected.
    """
    if not failed.done():
        failed.set_exception(error)
        failed.exception()


class StoredEntry(NamedTuple):
    """An entry as a topic stores it: `size` in bytes with headers and metadata, `broker_timestamp` in ms."""

    metadata: MessageMetadata
    payload: bytes
    size: int
    broker_timestamp: int | None = None


class Greeting(NamedTuple):
    """What clients are told of the broker's configuration when they connect, by the names of its settings."""

    highestProtocolVersion: int
    maxMessageSize: int

    @classmethod
    def of(cls, config: ServiceConfiguration) -> Self:
        """That of a configuration."""
        return cls(config.highestProtocolVersion, config.maxMessageSize)


Deliver = Callable[[Sequence[Row]], None]
"""Called with rows in their order, once they and their commands are durable."""


class Engine(Protocol):
    """Appends commands to a log, folds them, and gives their rows. It is an asynchronous context manager."""

    failed: asyncio.Future[NoReturn]
    """Has the error, as soon as no more commands can be appended or folded."""

    greeting: asyncio.Future[Greeting]
    """As the configuration is at the start, once it is known: a query that folds the commands elsewhere has to say it."""

    shows_topic_events: bool
    """Whether all rows are delivered, also those that name no connection, such as the creation of a topic."""

    answers_in_order: bool
    """Whether a connection's answers come in the order of its commands, also those to commands that the gate refuses."""

    clock: Clock
    """Where the time of commands comes from."""

    written: Durations | None
    """How long writes of the log took, if this process writes one."""

    @property
    def unanswered(self) -> float | None:
        """How long the query that folds the commands elsewhere has not answered one that expects an answer, in seconds. None:
        they are folded here."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def submit(
        self, topic: str | None, command: AnyCommand | Publish, connection: str | None = None
    ) -> list[Row]:
        """Append a command, and give the rows of its record once it is durable.

        `topic`: as in a record, None for a command to the whole broker. It comes after what a `connection` has posted. Rows that name a connection were delivered there,
        too. A record that the gate refuses has one row, Quarantined. Raises `EngineStopped`, `NoAnswer`.
        """
        ...

    def post(
        self,
        connection: str,
        topic: str | None,
        value: bytes,
        done: Callable[[], None] | None = None,
        answers: int = 0,
    ) -> None:
        """Append a command, a record's `value`, of a connection. Its rows are delivered. Raises `EngineStopped`.

        Commands of a connection keep their order. Those of others may come before them. `done` is called once the engine holds nothing
        of the command any more: its rows were delivered, or the log of a query elsewhere has it. `answers`: how many rows it may
        have, besides one.
        """
        ...

    def post_run(self, topic: str, commands: Sequence[Send | Ack], done: Callable[[int], None]) -> None:
        """Append commands that come from `streaming.protocol.plain`, as `post` would. `done` is called with numbers of them."""
        ...

    def connect(self, deliver: Deliver) -> None:
        """Deliver all rows from now on. There is one such function."""
        ...

    def new_connection(self) -> str:
        """A name for a connection that no other has or had in the log."""
        ...

    def has_attached(self, connection: str, attached: Attached) -> bool | None:
        """Whether a connection has this producer or consumer, whatever its subscription. None: that is known elsewhere alone."""
        ...

    def entry(self, topic: str, ledger_id: int, entry_id: int) -> StoredEntry:
        """A stored entry that a row has named. Raises `EntryNotFound`, and `EngineStopped` if the store can't be read: then the
        engine has failed."""
        ...

    async def topics(
        self, namespace: str, connection: str | None = None, *, to_client: bool = False
    ) -> list[str]:
        """The full names of the topics in ``tenant/namespace``, partitions included, sorted, after what a `connection` has posted.
        `to_client`: without the system topics that no client is told of. Raises as `submit` does. Others get the same list: do
        not change it."""
        ...

    async def partitions(self, topic: str) -> int:
        """The number of partitions of a partitioned topic; 0 for any other name. Raises as `submit` does."""
        ...

    def now(self) -> int:
        """The time on the engine's clock, ms since the epoch."""
        ...
