"""Any bytes are a command or refused: never an exception, whatever the bytes, and the same on every stack."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.commands import Line, Refused, decode_or_refuse, nesting, to_binary
from schemas.commands.codec import Decoded, MalformedCommand, decode
from schemas.commands.parts import LARGEST_BATCH
from streaming.log.files import read_log, write_log
from streaming.quarantine.store import read_repaired
from streaming.traces.trace import TraceError, read_trace
from tests.quality.helpers import GOOD, value

DEEP = nesting.DEEPEST
TOO_DEEP = Refused("malformed", f"arrays and objects are nested more than {DEEP} deep")

leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    leaves, lambda kids: st.lists(kids, max_size=4) | st.dictionaries(st.text(), kids, max_size=4)
)
commands = st.sampled_from(sorted(GOOD)).map(value)


def on_a_stack(frames: int, call: Callable[[], Any]) -> Any:
    return on_a_stack(frames - 1, call) if frames else call()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A command in JSON or MessagePack with bytes replaced, inserted or cut off."""
    encoded = bytearray(draw(commands))
    if draw(st.booleans()):
        encoded = bytearray(to_binary(decode(bytes(encoded))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(encoded)))
        encoded[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=6))
    return bytes(encoded)


@st.composite
def with_a_tree(draw: st.DrawFn) -> bytes:
    """A command with any tree of values in one of its fields or in an unknown one, in any place."""
    command = json.loads(draw(commands))
    fields = [*command.items(), (draw(st.sampled_from([*command, "body", "x", "settings"])), draw(trees))]
    encode = draw(st.sampled_from([msgspec.json.encode, msgspec.msgpack.encode]))
    encoded: bytes = encode(dict(draw(st.permutations(fields))))
    return encoded


@given(st.binary(max_size=400) | damaged() | with_a_tree())
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x81\xa1x" + b"\xdf\xff\xff\xff\xff")
@example(b'{"command":"ADMIN","method":"POST","path":"/x","body":18446744073709551616}')
@example(b'{"command":"ADMIN","method":"POST","path":"/x","body":[{"a":-9223372036854775809}]}')
@example(b'{"command":"BROKER_CONFIG","settings":{"x":18446744073709551616}}')
def test_any_bytes_are_a_command_or_refused(record: bytes) -> None:
    found = decode_or_refuse(record)
    if isinstance(found, Line):
        found = found.command
    if isinstance(found, Refused):
        assert found.rule == "malformed"
        assert found.cause
    else:
        assert decode(to_binary(found)) == found


# -- depth


def json_tree(depth: int, dice: Random) -> bytes:
    opened = [dice.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[1,"]",', b"]")]) for _ in range(depth)]
    return b"".join(o for o, _ in opened) + b"1" + b"".join(c for _, c in reversed(opened))


def binary_tree(depth: int, dice: Random) -> bytes:
    return b"".join(dice.choice([b"\x91", b"\x81\xa1a", b"\xdc\x00\x01"]) for _ in range(depth)) + b"\x01"


def chunk_ids(depth: int) -> bytes:
    """Message ids within message ids."""
    opened = b'{"ledgerId":1,"entryId":1,"first_chunk_message_id":' * (depth - 1)
    return opened + b'{"ledgerId":1,"entryId":1}' + b"}" * (depth - 1)


PLACES: dict[str, Callable[[int, Random], bytes]] = {
    "a body": lambda n, dice: b'{"command":"ADMIN","method":"PUT","path":"/x","body":' + json_tree(n, dice) + b"}",
    "a body before the name": lambda n, dice: b'{"body":' + json_tree(n, dice) + b',"command":"TICK"}',
    "the short form": lambda n, dice: b'{"x":' + json_tree(n, dice) + b"}",
    "no end": lambda n, dice: b'{"command":"ADMIN","body":' + b"[" * n,
    "first chunks": lambda n, dice: b'{"command":"SEEK","consumer_id":1,"request_id":1,"message_id":' + chunk_ids(n) + b"}",
    "a body in MessagePack": lambda n, dice: b"\x82\xa7command\xa5ADMIN\xa4body" + binary_tree(n, dice),
    "a body before the name in MessagePack": lambda n, dice: b"\x82\xa4body" + binary_tree(n, dice) + b"\xa7command\xa4TICK",
    "nothing else in MessagePack": binary_tree,
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("depth", [2, 30, DEEP - 1, DEEP, DEEP + 1, 700, 850, 920, 1000, 5000])
def test_depth_is_judged_alike_on_every_stack(place: str, depth: int) -> None:
    record = PLACES[place](depth, Random(depth))
    found: list[Decoded] = [on_a_stack(frames, lambda: decode_or_refuse(record)) for frames in (0, 150, 400)]
    assert found[0] == found[1] == found[2]
    if depth > DEEP:
        assert found[0] == TOO_DEEP


def depth_of(tree: object) -> int:
    if not isinstance(tree, list | dict):
        return 0
    return 1 + max(map(depth_of, tree.values() if isinstance(tree, dict) else tree), default=0)


@given(trees, st.integers(0, 6))
def test_depth_is_that_of_the_tree(tree: object, deepest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "DEEPEST", deepest)
        assert nesting.is_deep(msgspec.json.encode(tree)) == (depth_of(tree) > deepest)
        filled = msgspec.json.decode(
            msgspec.json.encode(tree).replace(b"[]", b"[0]").replace(b"{}", b'{"":0}')
        )
        assert nesting.is_deep_binary(msgspec.msgpack.encode(filled)) == (depth_of(filled) > deepest)


def test_a_body_is_json_and_nests_as_deep_as_any_of_pulsar() -> None:
    policies = {
        "auth_policies": {"namespace_auth": {"role": ["produce", "consume"]}},
        "bundles": {"numBundles": 4},
    }
    assert not isinstance(decode_or_refuse(value("ADMIN", body=policies)), Refused)
    for other in (b"\x81\x01\x01", b"\xc4\x01x", b"\xd6\xff\x00\x00\x00\x00", b"\x81\x91\x01\x01"):
        encoded = (
            msgspec.msgpack.encode({"command": "ADMIN", "method": "PUT", "path": "/x", "body": 0})[:-1]
            + other
        )
        assert isinstance(decode_or_refuse(encoded), Refused)


def test_deep_lines_of_a_log_keep_their_bytes(tmp_path: Any) -> None:
    line = PLACES["a body before the name"](5000, Random(0))
    log = tmp_path / "log.jsonl"
    log.write_bytes(line + b"\n" + value("PUBLISH") + b"\n")
    assert read_log(log)["value"].to_pylist() == [line, value("PUBLISH").replace(b" ", b"")]
    write_log(tmp_path / "copy.jsonl", read_log(log))
    assert read_log(tmp_path / "copy.jsonl")["value"].to_pylist()[0] == line
    with pytest.raises(ValueError, match="not a JSON object"):
        read_repaired(log)
    (tmp_path / "trace.jsonl").write_bytes(line)
    with pytest.raises(TraceError, match="nested"):
        read_trace(tmp_path / "trace.jsonl")


# -- size


@pytest.mark.parametrize("value", [b"not json", b"[1]", b"5", b"\x93\x01\x02\x03", b"\x1f\x8b\x08"])
def test_what_is_no_object_is_told_to_begin_otherwise(value: bytes) -> None:
    """It may be meant as JSON."""
    with pytest.raises(
        MalformedCommand, match=r"^neither a JSON object, which begins with \{, nor its MessagePack form$"
    ):
        decode(value)


def test_commands_of_operators_are_small() -> None:
    for kind, field, items in (("ADMIN", "body", []), ("BROKER_CONFIG", "settings", {})):
        command = json.loads(value(kind, **{field: items})) | {"connection": "x" * (1 << 20)}
        for encoded in (msgspec.json.encode(command), msgspec.msgpack.encode(command)):
            found = decode_or_refuse(encoded)
            assert isinstance(found, Refused)
            assert "it has at most 1,048,576" in found.cause
    assert not isinstance(decode_or_refuse(value("PUBLISH", payload="command" * (1 << 18))), Refused)
    assert not isinstance(decode_or_refuse(value("SEND", payload="x" * (1 << 21))), Refused)


def test_an_ack_set_is_no_longer_than_the_largest_batch() -> None:
    words = -(-LARGEST_BATCH // 64)
    for count, refused in ((words, False), (words + 1, True)):
        id_ = {"ledgerId": 1, "entryId": 0, "ack_set": [1] * count}
        for record in (value("ACK", message_id=[id_]), value("SEEK", message_id=id_)):
            assert isinstance(decode_or_refuse(record), Refused) == refused
