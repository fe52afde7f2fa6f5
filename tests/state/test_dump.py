"""States as text: equal after a round trip, and refused with the line if somebody changed them."""

import io
import json
import re
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming.broker.broker import Broker
from streaming.broker.state.codec import VERSION, decode_state, encode_state
from streaming.state import dump as dumps
from streaming.state.dump import BadDump, Header, read_dump, read_header, write_dump
from tests.broker.kit import Stored, feed
from tests.broker.random_lives import live
from tests.broker.recorded_lives import NAMES
from tests.state import golden
from tests.state.checkpoint import RELEASES
from tests.state.lives import LIVES

pytestmark = pytest.mark.feature("J2")


def dump_of(*states: bytes, header: Header | None = None) -> bytes:
    file = io.BytesIO()
    write_dump(file, header or Header(), states)
    return file.getvalue()


def read(dump: bytes) -> list[bytes]:
    return list(read_dump(io.BytesIO(dump)))


@pytest.mark.parametrize(("theme", "seed"), NAMES[2::9])
def test_a_random_life_is_equal_and_goes_on(theme: str, seed: int) -> None:
    log, expected, *_ = live(theme, seed)
    store = Stored()
    broker = Broker(0, store)
    cuts = {len(log) // 3, 2 * len(log) // 3}
    for offset, (timestamp, topic, value) in enumerate(log):
        if offset in cuts:
            state = broker.encode()
            dump = dump_of(state)
            assert read(dump) == [state]
            assert dump_of(*read(dump)) == dump
            broker = Broker.decode(read(dump)[0], store)
        feed(broker, offset, timestamp, topic, value)
        rows = broker.take()
        assert rows == expected[offset]
        store.add([row.effect for row in rows])


@pytest.mark.parametrize("name", LIVES)
def test_all_parts_of_a_state(name: str) -> None:
    life = LIVES[name]()
    store = Stored()
    broker = Broker(0, store)
    for offset, record in enumerate(life.before):
        feed(broker, offset, *record)
        store.add([row.effect for row in broker.take()])
    state = broker.encode()
    (again,) = read(dump_of(state))
    assert again == state, name


@pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)
def test_states_of_a_release_become_those_of_this_version(folder: Path) -> None:
    for name, life in golden.read(folder).lives.items():
        (again,) = read(dump_of(life.state))
        assert again == encode_state(decode_state(again))
        life.state = again
        rows, _, _ = golden.go_on(golden.restored(life), life.after)
        assert rows, name


def small() -> bytes:
    """Two partitions with a topic each."""
    states = []
    for partition in range(2):
        broker = Broker(partition, Stored())
        value = json.dumps({"producer": "p", "sequence_id": partition}).encode()
        feed(broker, 7, 1_700_000_000_000, f"persistent://a/b/ü{partition}", value)
        states.append(broker.encode())
    return dump_of(*states, header=Header(ingress="commands", partitions=2, offsets={"0": 8, "1": 9}))


def test_people_can_read_it() -> None:
    lines = [json.loads(line) for line in small().splitlines()]
    assert [next(iter(line)) for line in lines] == [
        "format",
        "partition",
        "topic",
        "partition",
        "topic",
        "end",
    ]
    assert lines[0]["format"] == "magnetar-state"
    assert (lines[0]["version"], lines[0]["encoding"], lines[0]["offsets"]) == (1, VERSION, {"0": 8, "1": 9})
    assert (lines[1]["clock"], lines[1]["offset"]) == (1_700_000_000_000, 7)
    assert lines[2]["topic"] == "persistent://a/b/ü0"
    assert "ü0".encode() in small()
    assert lines[2]["state"]["ledger"]["last_confirmed"] == {"ledger": 1, "entry": 0}
    assert lines[5] == {"end": 6, "crc32": lines[5]["crc32"]}
    assert read_header(io.BytesIO(small())) == Header(
        ingress="commands", partitions=2, offsets={"0": 8, "1": 9}
    )


def signed(lines: list[bytes]) -> bytes:
    """Lines without checksums, with right ones."""
    found, total = b"", 0
    for line in lines:
        total = zlib.crc32(line, total)
        found += line + b',"crc32":"%08x"}\n' % total
    return found


def changed(number: int, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The dump with another line, counted from 1, and right checksums."""
    lines = [json.loads(line) for line in small().splitlines()]
    change(lines[number - 1])
    return signed(
        [json.dumps({n: v for n, v in line.items() if n != "crc32"}).encode()[:-1] for line in lines]
    )


LINES = small().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("dump", "said"),
    [
        (b"", ("line 1: the file ends here, before the end of the dump: it was truncated. Expected a dump of "
        "magnetar state export")),
        (b'{"producer":"p","sequence_id":1}\n', "line 1: the checksum is wrong.*Expected a dump of"),
        (signed([b'{"format":"other"']), "line 1: the format is not 'magnetar-state'. Expected a dump of magnetar state export"),
        (b"".join(LINES[:-1]), "line 6: the file ends here"),
        (small()[:-1], "line 6: the file ends here"),
        (b"".join(LINES[:2])[:-30], "line 2: the file ends here"),
        (small().replace(b'"sequence_id"', b'"sequence-id"').replace(b'"clock":17', b'"clock":18', 1),
         "line 2: the checksum is wrong: this line was changed, or one before it was added or removed"),
        (b"".join(LINES[:2] + LINES[3:]), "line 3: the checksum is wrong"),
        (b"".join(LINES[:3] + LINES[2:]), "line 4: the checksum is wrong"),
        (small() + LINES[1], "line 7: nothing may follow the end"),
        (changed(1, lambda line: line.update(version=2)), "line 1: the dump has version 2 with states of version 2, this Magnetar reads"),
        (changed(1, lambda line: line.update(encoding=99)), "line 1: .*states of version 99, this Magnetar .*. Use the version that wrote"),
        (changed(1, lambda line: line.update(offsets=5)), "line 1: Expected `object`"),
        (changed(1, lambda line: line.update(offsets={})), "line 1: expected an offset for each of the 2 partitions. Export the states"),
        (changed(1, lambda line: line.update(partitions=0, offsets={})), "line 1: expected the number of the partitions of topic commands"),
        (changed(2, lambda line: line.update(clock="x")), "line 2: not the state of a partition or a topic"),
        (changed(2, lambda line: line.pop("origin")), "line 2: not the state of a partition or a topic .KeyError"),
        (changed(2, lambda line: line.update(more=1)), "line 2: .*unknown fields: more"),
        (changed(3, lambda line: line["state"].pop("ledger")), "line 3: .*unknown fields"),
        (changed(3, lambda line: line.update(storage="x")), "line 3: not the state"),
        (changed(6, lambda line: line.update(end=7)), "line 6: expected a partition, a topic, or the end"),
        (signed([LINES[0][: -len(b',"crc32":"00000000"}\n')], b"[1"]), "line 2: Expecting"),
    ],
)  # fmt: skip
def test_what_is_not_a_whole_dump(dump: bytes, said: str) -> None:
    with pytest.raises(BadDump, match=said) as error:
        read(dump)
    assert re.search(r"\. (Export the states again|Expected a dump|Use the version)", str(error.value))


# ---- dumps that somebody made to do harm: the checksums are right


def sealed(lines: list[Any]) -> bytes:
    """A dump of lines: objects, or their texts without the last bracket."""
    found, total = b"", 0
    for line in lines:
        text = (
            line
            if isinstance(line, bytes)
            else json.dumps({k: v for k, v in line.items() if k != "crc32"}).encode()[:-1]
        )
        total = zlib.crc32(text, total)
        found += text + b',"crc32":"%08x"}\n' % total
    return found


def two_topics() -> list[Any]:
    """The lines of a dump of one partition with two topics."""
    broker = Broker(0, Stored())
    for offset, name in enumerate("ab"):
        feed(broker, offset, 1, f"persistent://public/default/{name}", b'{"producer":"p","sequence_id":0}')
    header = Header(ingress="t", partitions=1, offsets={"0": 2})
    return [json.loads(line) for line in dump_of(broker.encode(), header=header).splitlines()]


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        (b" " * (3 << 20), 8 << 20),  # a line without an end
        (b'{"x":[' + b"[]," * (1 << 18), 8 << 20),  # 800 kB that would become 20 MB
        (b'{"x":[' + b"9," * (1 << 18), 8 << 20),
    ],
)
def test_a_line_that_would_become_much(line: bytes, allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "LONGEST_LINE", 1 << 20)
    monkeypatch.setattr(dumps, "MOST_VALUES", 1 << 16)
    for dump in (line, sealed([two_topics()[0], line])):
        tracemalloc.start()
        with pytest.raises(
            BadDump, match=r"line [12]: no line of a dump has more than (1 MiB|65,536 values)"
        ):
            read(dump)
        assert tracemalloc.get_traced_memory()[1] < allowed
        tracemalloc.stop()


def test_what_can_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "MOST_VALUES", 40)
    with pytest.raises(
        BadDump, match="can't be written as text: it has more than 40 values. .* magnetar state move"
    ):
        two_topics()


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "a topic twice": lambda lines: lines.insert(3, lines[2]),
    "a partition twice": lambda lines: lines.insert(-1, lines[1]),
    "a partition beyond the last": lambda lines: lines[1].update(partition=1),
    "a partition before the first": lambda lines: lines[1].update(partition=-1),
    "too many partitions": lambda lines: lines[0].update(partitions=10**9),
    "fewer than none": lambda lines: lines[0].update(partitions=-1),
    "an offset for no partition": lambda lines: lines[0].update(offsets={"0": 1, "x": 1}),
    "no offset for a partition": lambda lines: lines[0].update(partitions=2),
    "an offset below 0": lambda lines: lines[0].update(offsets={"0": -1}),
    "a huge number in the header": lambda lines: lines[0].update(offsets={"0": 10**400}),
    "a huge number": lambda lines: lines[1].update(clock=10**40),
    "no number": lambda lines: lines[1].update(clock=float("nan")),
    "half a character": lambda lines: lines[0].update(offsets={"\ud800": 1}),
    "a name that is a number": lambda lines: lines[2].update(topic=7),
    "a name that no topic has": lambda lines: lines[2].update(topic="../x"),
    "nested": lambda lines: lines.insert(1, b'{"partition":' + b"[" * 100_000),
    "lists in lists": lambda lines: lines[2].update(backlog=json.loads("[" * 500 + "]" * 500)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_dump_that_no_export_writes(change: str) -> None:
    lines = two_topics()
    CHANGES[change](lines)
    lines[-1] = {"end": len(lines)}
    assert len(read(sealed(two_topics()))) == 1
    with pytest.raises(BadDump, match="line"):
        read(sealed(lines))
