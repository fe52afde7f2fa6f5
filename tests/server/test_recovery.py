"""A server that starts: clients connect when it can answer, and whoever waits sees how far it has come."""

import asyncio
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest

from schemas.commands import Admin, Publish, to_json
from streaming.fold.records import Records
from streaming.log.files import read_lines
from streaming.server import data_folder, progress, server
from streaming.server.clock import HeldClock
from streaming.server.data_folder import DataFolder
from streaming.server.embedded import EmbeddedEngine
from streaming.server.progress import FoldProgress
from streaming.server.server import Address, ListenError, Server, bound

START = 1_700_000_000_000
TOPIC = "persistent://public/default/t"


def is_open(listener: socket.socket) -> bool:
    with socket.socket() as client:
        return client.connect_ex(listener.getsockname()) == 0


def test_no_port_is_open_before_the_engine_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are refused meanwhile, and try again. They do not wait for an answer."""
    sockets = [bound(Address("127.0.0.1", 0), "") for _ in range(2)]
    before: list[bool] = []
    recover = DataFolder.recover

    def looking(folder: DataFolder, *words: Any, **named: Any) -> Any:
        before.extend(map(is_open, sockets))
        return recover(folder, *words, **named)

    monkeypatch.setattr(DataFolder, "recover", looking)

    async def main() -> None:
        engine = EmbeddedEngine(tmp_path, clock=HeldClock(START))
        async with engine, Server(engine, sockets[0], admin_listener=sockets[1]):
            assert all(map(is_open, sockets))

    asyncio.run(main())
    assert before == [False, False]


def test_an_address_that_another_server_took_meanwhile() -> None:
    first = bound(Address("127.0.0.1", 0), "--listen")
    second = bound(Address("127.0.0.1", first.getsockname()[1]), "--listen")
    server._listen(first)
    with pytest.raises(ListenError, match="another program listens there"):
        server._listen(second)
    with pytest.raises(ListenError, match="--listen 127.0.0.1.*another program listens there"):
        bound(Address("127.0.0.1", first.getsockname()[1]), "--listen")
    first.close()
    second.close()


def test_the_fold_of_a_log_says_how_far_it_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHORT", 0)
    said: list[str] = []

    async def publish(count: int) -> None:
        engine = EmbeddedEngine(tmp_path, clock=HeldClock(START), fsync=False, say=said.append)
        await engine.__aenter__()
        for number in range(count):
            engine.post("c", TOPIC, to_json(Publish(producer="p", sequence_id=number)))
        assert len(engine.broker.topic_names()) == 1
        engine._resources.close()  # as if it were killed: there is no checkpoint

    asyncio.run(publish(10_000))
    said.clear()
    asyncio.run(publish(0))
    assert said[0].startswith(
        "folding 1 MiB of the log, which came after the last checkpoint; clients can't connect yet"
    )
    assert len(said) >= 2
    assert "% of the log is folded" in said[-1]


def test_each_tenth_is_said_once() -> None:
    said: list[str] = []
    told = FoldProgress(100 << 20, said.append)
    for number in range(1000):
        told.add(Records([number], [0], [None], [b"x" * (100 << 20 >> 10)]))
    assert len(said) == 10
    FoldProgress(100, said.append).add(Records([0], [0], [None], [b"x" * 90]))
    assert len(said) == 10


TOPICS = [None, TOPIC, 'persistent://public/default/"quoted\\', "persistent://public/default/ü\u2028\n,"]
VALUES = [
    to_json(Publish(producer="p", sequence_id=1, payload='a\n"},\r\u2028"crc32":"01234567"}')),
    to_json(Admin(method="POST", path="/x", body={"topic": "t", "crc32": "01234567"})),  # which is none
    to_json(Admin(method="POST", path="/x", body=[{"topic": "t", "crc32": "01234567"}, {}])),
    b'{"a":' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"a":1}',
]


def test_the_log_of_a_server_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As line by line, but for values that nest too deep, which then keep their coordinates."""
    pairs = [(topic, value) for topic in TOPICS for value in VALUES]
    given = Records([*range(len(pairs))], [START] * len(pairs), *map(list, zip(*pairs, strict=True)))
    with DataFolder(tmp_path, fsync=False) as folder:
        folder._open(tmp_path / "commands" / f"{0:020d}.jsonl")
        for start in range(0, len(pairs), 3):
            folder.append(Records(*(column[start : start + 3] for column in given)))  # type: ignore[arg-type]
    path = tmp_path / "commands" / f"{0:020d}.jsonl"
    table = read_lines(path.read_bytes().splitlines(keepends=True), "")
    read = list(zip(*(table[name].to_pylist() for name in ("offset", "topic", "value")), strict=True))
    deep = VALUES[3]
    assert [each for each in read if b"[[[" not in each[2]] == [
        (number, *pair) for number, pair in enumerate(pairs) if pair[1] != deep
    ]

    def never(*_: object) -> NoReturn:
        raise AssertionError("line by line")

    monkeypatch.setattr("streaming.log.files.read_lines", never)
    with DataFolder(tmp_path, fsync=False) as folder:
        (found,) = folder._records_of(path, is_last=True)
    assert found == given


@pytest.mark.parametrize("change", [(b'"partition":0,', b'"partition":0, '), (b'"offset":0,', b"")])
def test_a_log_that_is_written_otherwise_is_read_line_by_line(
    tmp_path: Path, change: tuple[bytes, bytes]
) -> None:
    given = Records([0, 1], [START] * 2, [TOPIC] * 2, VALUES[:2])
    lines = data_folder._lines(given).replace(*change)
    assert data_folder._columns_of(lines) is None
    path = tmp_path / "commands" / f"{0:020d}.jsonl"
    with DataFolder(tmp_path, fsync=False) as folder:
        path.write_bytes(lines)
        (found,) = folder._records_of(path, is_last=True)
    assert found == given
