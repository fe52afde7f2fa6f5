"""The engine of a log in a file: calls see what the log leads to, and those that succeed can be appended to it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Self

from schemas.commands import Ack, Admin, AnyCommand, Publish, Send, to_json
from schemas.effects import AdminResponse, Row
from schemas.entries import EntryNotFound
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from streaming.broker.topic.abstract_topic import Attached
from streaming.log.files import read_log
from streaming.log.partition import partition_log
from streaming.log.table import LOGICAL, LogError
from streaming.metrics.durations import Durations
from streaming.quality.gate import judge
from streaming.server.clock import Clock, HeldClock
from streaming.server.engine import Deliver, Greeting, StoredEntry

_AT_ONCE = 1 << 10


class LogEngine:
    """See `Engine`. It writes nothing: `accepted` has the commands that changed something, to append to the log.

    The whole log is folded when it is entered, in one ingress partition, and its entries are kept in memory.
    """

    def __init__(self, log: Path) -> None:
        """`log`: a file that need not exist. Time goes on in a log as its timestamps say; in a new one, it begins now.

        Raises `LogError`.
        """
        table = read_log(log) if log.exists() else LOGICAL.empty_table()
        if "partition" in table.column_names:
            raise LogError(
                f"{log} has ingress partitions: commands without an offset can't be appended to it"
            )
        self._records = partition_log(table, 1)
        self._now = 0 if len(table) else time.time_ns() // 1_000_000
        self.clock: Clock = HeldClock(self._now)
        self.accepted: list[tuple[str | None, AnyCommand | Publish]] = []

    shows_topic_events = False
    answers_in_order = False
    written: Durations | None = None
    unanswered = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[NoReturn] = loop.create_future()
        self.greeting: asyncio.Future[Greeting] = loop.create_future()
        self._broker = Broker(0, NoEntries())
        for batch in self._records.to_batches(max_chunksize=_AT_ONCE):
            columns = [batch.column(name).to_pylist() for name in ("offset", "timestamp", "topic", "value")]
            for offset, timestamp, topic, value, command in zip(
                *columns, judge(columns[2], columns[3]), strict=True
            ):
                self._broker.apply(offset, timestamp, topic, command, value)
                self._broker.take()
        self.greeting.set_result(Greeting.of(self._broker.config))
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def submit(
        self, topic: str | None, command: AnyCommand | Publish, connection: str | None = None
    ) -> list[Row]:
        """See `Engine.submit`."""
        value = to_json(command)
        (decoded,) = judge([topic], [value])
        self._broker.apply(self._broker.offset + 1, self.now(), topic, decoded, value)
        rows = self._broker.take()
        answers = [row.effect for row in rows if isinstance(row.effect, AdminResponse)]
        reads = isinstance(command, Admin) and command.method == "GET"
        if not reads and answers and all(each.fields.status < 400 for each in answers):
            self.accepted.append((topic, command))
        return rows

    def post(
        self,
        connection: str,
        topic: str | None,
        value: bytes,
        done: Callable[[], None] | None = None,
        answers: int = 0,
    ) -> None:
        """No clients are connected."""
        raise NotImplementedError

    def post_run(self, topic: str, commands: Sequence[Send | Ack], done: Callable[[int], None]) -> None:
        """No clients are connected."""
        raise NotImplementedError

    def connect(self, deliver: Deliver) -> None:
        """See `Engine.connect`. No rows are delivered, since no clients are connected."""

    def new_connection(self) -> str:
        """See `Engine.new_connection`."""
        return ""

    def has_attached(self, connection: str, attached: Attached) -> bool | None:
        """See `Engine.has_attached`."""
        return None

    def entry(self, topic: str, ledger_id: int, entry_id: int) -> StoredEntry:
        """Payloads are not kept."""
        raise EntryNotFound(f"{topic} {ledger_id}:{entry_id}: payloads are not kept")

    async def topics(
        self, namespace: str, connection: str | None = None, *, to_client: bool = False
    ) -> list[str]:
        """See `Engine.topics`."""
        return self._broker.listed_topics(namespace, to_client=to_client)

    async def partitions(self, topic: str) -> int:
        """See `Engine.partitions`."""
        return self._broker.partitioned.get(topic, 0)

    def now(self) -> int:
        """See `Engine.now`."""
        return max(self._now, self._broker.clock)
