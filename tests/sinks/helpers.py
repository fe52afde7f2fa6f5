"""Output rows by hand, and a filesystem that dies, for the tests of the sinks."""

from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import fs

from schemas.commands import MessageMetadata
from schemas.effects import KINDS, Effect, LedgerClosed, LedgerDeleted, SendReceipt
from schemas.outputs import OUTPUT, Rows
from tests.rows import by_kind

TOPIC = "persistent://public/default/orders"


def output(effects: Iterable[Effect], *, partition: int = 0, offset: int = 0, clock: int = 1000) -> Rows:
    """The rows of a partition, one record per effect, from `offset` on."""
    rows: list[dict[str, Any]] = []
    for i, effect in enumerate(effects):
        row = effect._asdict() | {"kind": KINDS[type(effect)]}
        if row.get("fields") is not None:
            row["fields"] = msgspec.json.encode(row["fields"]).decode()
        if row.get("metadata") is not None:
            row["metadata"] = msgspec.msgpack.encode(row["metadata"])
        rows.append(row | {"partition": partition, "offset": offset + i, "ordinal": 0, "clock": clock})
    return by_kind(pa.Table.from_pylist(rows, schema=OUTPUT))


def receipt(ledger_id: int, entry_id: int, *, topic: str = TOPIC, connection: str = "") -> SendReceipt:
    """The receipt of an entry that `entry` can tell; every third has metadata."""
    metadata = None
    if entry_id % 3 == 0:
        metadata = metadata_of(topic, ledger_id, entry_id)
    return SendReceipt(
        topic=topic,
        connection=connection,
        producer_id=1 if connection else None,
        producer_name=f"producer of {topic}",
        sequence_id=ledger_id * 1000 + entry_id,
        highest_sequence_id=None,
        ledger_id=ledger_id,
        entry_id=entry_id,
        size=len(payload_of(topic, ledger_id, entry_id)) + 20,
        messages=1,
        publish_time=5000 + entry_id,
        partition_key=None if entry_id % 2 else f"key {entry_id}",
        metadata=metadata,
        payload=payload_of(topic, ledger_id, entry_id),
    )


def metadata_of(topic: str, ledger_id: int, entry_id: int) -> MessageMetadata:
    return MessageMetadata(
        producer_name=f"producer of {topic}",
        sequence_id=ledger_id * 1000 + entry_id,
        publish_time=5000 + entry_id,
        partition_key=None if entry_id % 2 else f"key {entry_id}",
        num_messages_in_batch=7 if entry_id % 3 == 0 else None,
    )


def payload_of(topic: str, ledger_id: int, entry_id: int) -> bytes:
    return f"{topic} {ledger_id}:{entry_id}".encode() * (1 + entry_id % 3)


def receipts(ledger_id: int, first: int, last: int, *, topic: str = TOPIC) -> list[Effect]:
    return [receipt(ledger_id, entry_id, topic=topic) for entry_id in range(first, last + 1)]


def closed(ledger_id: int, entries: int, *, topic: str = TOPIC) -> LedgerClosed:
    return LedgerClosed(topic=topic, ledger_id=ledger_id, entries=entries, size=entries * 50, cause="full")


def deleted(ledger_id: int, entries: int = 0, *, topic: str = TOPIC) -> LedgerDeleted:
    return LedgerDeleted(topic=topic, ledger_id=ledger_id, entries=entries, size=0, cause="retention")


class Killed(BaseException):
    """The process is dead: nothing it does takes effect any more."""


class Mortal:
    """A local filesystem whose process dies before its call number `lives` + 1 (None: never). It counts calls that
    change something, and bytes that are read."""

    def __init__(self, lives: int | None = None) -> None:
        self.lives = lives
        self.calls = 0
        self.bytes_read = 0
        self._local = fs.LocalFileSystem()

    def _live(self) -> None:
        if self.lives is not None and self.calls >= self.lives:
            raise Killed
        self.calls += 1

    def get_file_info(self, what: Any) -> Any:
        return self._local.get_file_info(what)

    def open_input_file(self, path: str) -> pa.NativeFile:
        if not Path(path).exists():
            raise FileNotFoundError(path)
        return pa.PythonFile(_Counting(path, self), mode="r")

    def open_output_stream(self, path: str, compression: str | None) -> pa.NativeFile:
        self._live()
        return self._local.open_output_stream(path, compression=compression)

    def create_dir(self, path: str, *, recursive: bool) -> None:
        self._live()
        self._local.create_dir(path, recursive=recursive)

    def move(self, source: str, target: str) -> None:
        self._live()
        self._local.move(source, target)

    def delete_file(self, path: str) -> None:
        self._live()
        self._local.delete_file(path)

    def delete_dir_contents(self, path: str, *, missing_dir_ok: bool) -> None:
        self._live()
        self._local.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)


class _Counting(FileIO):
    """A file that tells how much was read of it."""

    def __init__(self, path: str, owner: Mortal) -> None:
        super().__init__(path)
        self._owner = owner

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size) or b""
        self._owner.bytes_read += len(data)
        return data


def tree(root: Path) -> dict[str, bytes]:
    """Every file below `root` and its content, but for what is temporary."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "_temporary" not in path.parts
    }
