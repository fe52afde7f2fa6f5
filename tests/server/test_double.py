"""The folder of a test double is its own, and a reset leaves nothing of what came before."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import Publish
from streaming.runtime.clock import RealClock
from streaming.server.binary import BinaryServer
from streaming.server.clock import HeldClock
from streaming.server.control import BadCall, Control
from streaming.server.data_folder import COMMANDS, TEST_DOUBLE, BadData, segment_name
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from tests.examples import examples
from tests.server.test_data import FIRST, START, TOPIC, publish, run, stats

DAY = 86_400_000


class Double:
    """What tests do to a double. Its machine's clock stands still, too."""

    def __init__(self, engine: EmbeddedEngine, clock: HeldClock) -> None:
        self.engine, self._clock = engine, clock
        self._control = Control(engine, BinaryServer(engine, "pulsar://localhost:6650"), clock)
        self._snapshots: list[int] = []

    async def publish(self) -> None:
        await self.engine.submit(TOPIC, Publish(producer="p", sequence_id=self._clock.now()))

    async def advance(self) -> None:
        self._clock.move_to(self._clock.now() + DAY)
        await self.engine.tick()

    async def snapshot(self) -> None:
        self._snapshots.append((await self._control.snapshot(None)).id)  # type: ignore[arg-type]

    async def restore(self) -> None:
        if self._snapshots:
            request: Any = type("Request", (), {"path_params": {"id": str(self._snapshots.pop())}})
            await self._control.restore(request)
            self._snapshots.clear()

    async def reset(self) -> Any:
        self._snapshots.clear()
        now = (await self._control.reset(None)).now  # type: ignore[arg-type]
        return now, self.engine.snapshot()._replace(entries=None, length=0)  # type: ignore[arg-type]


class Machine(RealClock):
    """A machine whose clock stands still."""

    def now(self) -> int:
        return START


def doubled(folder: Path, *steps: str) -> Any:
    """What comes of the last of the steps of a double in a folder, and its log. How long that is depends on how many writes it took, each
    of which has a checksum."""

    async def main() -> Any:
        clock = HeldClock(START, Machine())
        async with EmbeddedEngine(folder, clock=clock, begins_with=STANDALONE, test_double=True) as engine:
            double = Double(engine, clock)
            return [await getattr(double, step)() for step in steps][-1]

    found = asyncio.run(main())
    lines = [
        json.loads(line) for file in sorted(folder.rglob("*.jsonl")) for line in file.read_text().splitlines()
    ]
    return found, [{name: value for name, value in each.items() if name != "crc32"} for each in lines]


STEPS = st.lists(st.sampled_from(["publish", "advance", "snapshot", "restore", "reset"]), max_size=6)


@settings(max_examples=examples(30))
@given(st.lists(STEPS, min_size=1, max_size=3))
def test_a_reset_leaves_nothing_of_any_life(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[str]]
) -> None:
    """Neither of this process nor of those before it: state, log and clock are those of a new double."""
    new, old = (tmp_path_factory.mktemp(name) for name in ("new", "old"))
    expected = doubled(new, "reset")
    for life in lives:
        found = doubled(old, *life, "reset", "publish", "advance", "reset")
        assert found == expected
        doubled(old, *life, "publish")


@settings(max_examples=examples(30))
@given(st.lists(st.one_of(st.sampled_from(["advance", "snapshot", "reset"]), st.integers(0, 9)), max_size=12))
def test_the_number_of_a_snapshot_is_that_of_no_other(steps: list[str | int]) -> None:
    """Going back to one (a number: which of all that ever were) leads to its time, or is refused because it is gone."""

    async def main() -> None:
        clock = HeldClock(START, Machine())
        async with EmbeddedEngine(clock=clock, begins_with=STANDALONE, test_double=True) as engine:
            control = Control(engine, BinaryServer(engine, "pulsar://localhost:6650"), clock)
            taken: dict[int, int] = {}
            kept: list[int] = []
            request: Any
            for step in steps:
                match step:
                    case "advance":
                        clock.move_to(clock.now() + DAY)
                        await engine.tick()
                    case "snapshot":
                        number = (await control.snapshot(None)).id  # type: ignore[arg-type]
                        assert number not in taken
                        taken[number] = clock.now()
                        kept.append(number)
                    case "reset":
                        await control.reset(None)  # type: ignore[arg-type]
                        kept.clear()
                    case int() if taken:
                        number = [*taken][step % len(taken)]
                        request = type("Request", (), {"path_params": {"id": str(number)}})
                        if number in kept:
                            assert (await control.restore(request)).now == taken[number]
                            del kept[kept.index(number) + 1 :]
                        else:
                            with pytest.raises(BadCall, match="there is no such snapshot"):
                                await control.restore(request)

    asyncio.run(main())


def test_a_double_goes_on_in_its_folder(tmp_path: Path) -> None:
    doubled(tmp_path, "advance", "publish")

    async def main() -> None:
        clock = HeldClock(START)
        async with EmbeddedEngine(tmp_path, clock=clock, begins_with=STANDALONE, test_double=True) as engine:
            assert (await stats(engine))["numberOfEntries"] == 1
            assert clock.now() == START + DAY

    asyncio.run(main())


def _served(folder: Path) -> None:
    run(folder, lambda engine: publish(engine, 1))


def _killed(folder: Path) -> None:
    """A broker that had no checkpoint."""
    _served(folder)
    (folder / "checkpoint").unlink()
    for each in sorted((folder / COMMANDS).iterdir())[1:]:
        each.unlink()


def _begun(folder: Path) -> None:
    (folder / FIRST).parent.mkdir()
    (folder / FIRST).touch()


def _of_spark(folder: Path) -> None:
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "metadata").touch()


def _own(folder: Path) -> None:
    (folder / "notes.txt").touch()


@pytest.mark.parametrize("other", [_served, _killed, _begun, _of_spark, _own])
def test_a_double_leaves_other_folders_as_they_are(other: Callable[[Path], None], tmp_path: Path) -> None:
    other(tmp_path)
    before = {each: each.is_file() and each.read_bytes() for each in tmp_path.rglob("*")}
    with pytest.raises(BadData, match="has a log that no test double began|no command log"):
        doubled(tmp_path, "advance")
    assert {each: each.is_file() and each.read_bytes() for each in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("log", [True, False])
def test_no_other_broker_goes_on_in_the_folder_of_a_double(log: bool, tmp_path: Path) -> None:
    """Nor in that of one that was killed before it had a log."""
    doubled(tmp_path, "publish", "advance")
    if not log:
        (tmp_path / COMMANDS / segment_name(0)).unlink()
    before = {each: each.is_file() and each.read_bytes() for each in tmp_path.rglob("*")}
    with pytest.raises(BadData, match="has the log of a test double, whose clock tests move"):
        _served(tmp_path)
    assert {each: each.is_file() and each.read_bytes() for each in tmp_path.rglob("*")} == before
    assert tmp_path / TEST_DOUBLE in before
