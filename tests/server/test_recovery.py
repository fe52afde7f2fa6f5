"""A server that starts: clients connect when it can answer, and whoever waits sees how far it has come."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from schemas.commands import Publish, to_json
from streaming.fold import Records
from streaming.server import progress, server
from streaming.server.clock import HeldClock
from streaming.server.data_folder import DataFolder
from streaming.server.embedded import EmbeddedEngine
from streaming.server.progress import Progress
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
            engine.post(TOPIC, to_json(Publish(producer="p", sequence_id=number)))
        await engine.tick()
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
    told = Progress(100 << 20, said.append)
    for number in range(1000):
        told.add(Records([number], [0], [None], [b"x" * (100 << 20 >> 10)]))
    assert len(said) == 10
    Progress(100, said.append).add(Records([0], [0], [None], [b"x" * 90]))
    assert len(said) == 10
