"""Values of commands, drawn by their types: a new command or field is fuzzed without a change here.

A command is drawn as a tree of plain values (dicts, lists, texts, bytes, numbers), so that it can be damaged before it
is encoded.
"""

import base64
from functools import partial
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from schemas.commands import AnyCommand, Publish
from streaming.broker.admin_table import TOPIC
from streaming.broker.config import WITHOUT_EFFECT, ServiceConfiguration
from streaming.broker.names import COORDINATOR_ASSIGN
from streaming.broker.persistent.admin_operations import CALLS
from streaming.broker.policies.admin_calls import ALL_POLICIES, POLICY_CALLS, QUOTA_TYPES
from streaming.broker.policies.hierarchy import BacklogQuota, DispatchRate
from streaming.broker.policies.kept import KEPT
from tests.broker.kit import START

KINDS: dict[str, type[msgspec.Struct]] = {
    "PUBLISH": Publish, **{str(kind.__struct_config__.tag): kind for kind in get_args(AnyCommand)}
}  # fmt: skip
"""Every kind of record by name."""

TOPICS = [f"{domain}://public/{name}" for domain, name in (
    ("persistent", "default/a"), ("persistent", "default/b"), ("persistent", "default/a-partition-1"),
    ("persistent", "more/c"), ("non-persistent", "default/n"),
)]  # fmt: skip
COORDINATOR = f"{COORDINATOR_ASSIGN}-partition-0"
OF_COORDINATORS = [
    "TC_CLIENT_CONNECT_REQUEST", "NEW_TXN", "ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN", "END_TXN"
]  # fmt: skip
CONNECTIONS = ["x", "y", "z"]
SUBSCRIPTIONS = ["s", "t", "u"]
SMALL = [0, 1, 2, 3, 5]
EDGES = sorted(
    {sign * (2**bits + step) for bits in (7, 8, 15, 16, 31, 32, 63, 64) for step in (-1, 0, 1) for sign in (1, -1)}
    | {10**number for number in range(1, 25)} | {-(10**15), 10**300, -1, 65_535, 50_001}
)  # fmt: skip
TEXTS = [
    "", "x", "a/b", "..", "../../etc/passwd", "\0", "\n", "é", "ﬀ", "\u202e", "😀", "%2F", "%00", "null", "-1", "1e400", "pulsar.dedup",
    "pulsar.repl.x", "persistent://public/default/a", ",", "a,b", "__proto__", "x" * 1024, "x" * 1025, "é" * 70_000,
]  # fmt: skip
POOLS: dict[str, list[Any]] = {
    "connection": CONNECTIONS,
    "producer": ["p", "q"],
    "producer_name": ["p", "q", None],
    "consumer_name": ["one", "two", None],
    "subscription": SUBSCRIPTIONS,
    "initial_subscription_name": SUBSCRIPTIONS,
    "consumer_id": [1, 2, 3],
    "producer_id": [1, 2],
    "request_id": [1, 2, 3],
    "ledgerId": [1, 1, 1, 2, 3, -1],
    "entryId": [*range(10), 20, 100, -1],
    "publish_time": [START, START + 1000, START - 10**9, None],
    "message_publish_time": [START, START + 1000, 0],
    "deliver_at_time": [START + 500, START + 5_000, START + 86_400_000, START - 1],
    "messagePermits": [1, 10, 1000],
    "num_messages_in_batch": [None, 1, 3, 10, 64, 65, 1000],
    "num_messages": [1, 3, 10, 64],
    "batch_size": [None, 1, 10, 64],
    "txnid_least_bits": [0, 1, 2, 3, None],
    "txnid_most_bits": [0, 0, 0, 1, None],
    "tc_id": [0, 0, 1],
    "txn_ttl_seconds": [60_000, 10**12, 50],
    "ack_set": [[], [0], [1], [5], [-1], [-1, -1]],
    "uuid": ["u", "v", None],
    "chunk_id": [0, 1, 2, None],
    "num_chunks_from_msg": [2, 3, None],
    "start": [0, 100, 30_000],
    "end": [99, 29_999, 65_535],
    "count": [0, 1, 2, 10],
}
"""Field → values that mean something in the logs of `cases`. Other fields are drawn by their type alone."""

_number = st.sampled_from(SMALL) | st.sampled_from(EDGES)
text = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
anything: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | _number | st.sampled_from([0.5, -0.0, 1e308, 5e-324]) | text | st.just(b"\xff\0")
    | st.sampled_from([[], {}, [None], {"a": {"b": []}}, [[]], {"": ""}])
)  # fmt: skip
"""A value of any type."""


def by_type(info: inspect.Type, name: str = "", depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a msgspec type; `name` is the field's."""
    match info:
        case inspect.StructType():
            return struct(info, depth)
        case inspect.Metadata():
            return by_type(info.type, name, depth)
        case inspect.IntType():
            drawn = _number.filter(lambda value: _within(value, info))
        case inspect.FloatType():
            drawn = st.sampled_from([0.0, 0.5, 1.0, 1e9, 1e-9, 1e15, -1.0])
        case inspect.BoolType():
            drawn = st.booleans()
        case inspect.StrType():
            drawn = text
        case inspect.BytesType():
            drawn = st.binary(max_size=12)
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.ListType():
            drawn = st.lists(by_type(info.item_type, depth=depth + 1), max_size=3)
        case inspect.TupleType():
            drawn = st.tuples(*(by_type(each, depth=depth + 1) for each in info.item_types))
        case inspect.DictType():
            drawn = st.dictionaries(text, by_type(info.value_type, depth=depth + 1), max_size=3)
        case inspect.UnionType():
            drawn = st.one_of([by_type(each, depth=depth) for each in info.types])
        case inspect.AnyType():
            drawn = anything
        case _:
            raise TypeError(f"no values for {info}")
    if name in POOLS:
        usual = st.sampled_from(POOLS[name])
        return st.one_of(usual, usual, usual, drawn)
    return drawn


def _within(value: int, info: inspect.IntType) -> bool:
    return (info.ge is None or value >= info.ge) and (info.le is None or value <= info.le)


def struct(info: inspect.StructType, depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """Trees of a struct: the required fields, and some of the others."""
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field in info.fields:
        if not (
            isinstance(field.type, inspect.UnionType | inspect.StructType | inspect.ListType) and depth > 2
        ):
            (required if field.required or field.encode_name == "connection" else optional)[
                field.encode_name
            ] = st.deferred(lambda field=field: by_type(field.type, field.encode_name, depth + 1))  # type: ignore[misc]
    tag: dict[str, Any] = {} if info.tag is None else {str(info.tag_field): info.tag}

    @st.composite
    def tree(draw: st.DrawFn) -> dict[str, Any]:
        drawn = {**tag, **{name: draw(values) for name, values in required.items()}}
        if optional:
            for name in draw(st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True)):
                drawn[name] = draw(optional[name])
        return drawn

    return tree()


COMMANDS = {name: struct(inspect.type_info(kind)) for name, kind in KINDS.items()}  # type: ignore[arg-type]


# -- settings and admin calls -----------------------------------------------------------------------------------------

_TYPES: dict[str, inspect.Type] = {
    field.encode_name: field.type
    for field in inspect.type_info(ServiceConfiguration).fields  # type: ignore[attr-defined]
    if field.encode_name != "profile"
}


def edges_of(setting: str) -> list[float]:
    """The ends of a setting's range."""
    type_ = _TYPES[setting]
    found = (type_.extra or {}).get("range", ()) if isinstance(type_, inspect.Metadata) else ()
    return [end for end in found if end is not None]


_SETTINGS = {name: by_type(type_) | st.sampled_from(edges_of(name) or [0]) for name, type_ in _TYPES.items()}
_usual = st.sampled_from([*SMALL, 10, 100, 1000, 0.5, -1, True, False])
_setting = st.sampled_from(sorted(_SETTINGS))
settings_of_a_broker = st.one_of(
    st.dictionaries(_setting, _usual, max_size=6),
    st.tuples(_setting).flatmap(lambda name: st.fixed_dictionaries({name[0]: _SETTINGS[name[0]]})),
    st.dictionaries(_setting | st.sampled_from(sorted(WITHOUT_EFFECT)) | text, anything, max_size=3),
)
"""Settings with usual values, with a value at the edge of its type, and wrong ones."""


def _topic_calls() -> list[tuple[str, st.SearchStrategy[str]]]:
    number = st.sampled_from(["0", "1", "5", "-1", "100", "9999999999", "999999999999999"])
    parts = {
        "subscription": st.sampled_from([*SUBSCRIPTIONS, "new", "%00", "pulsar.dedup"]),
        **dict.fromkeys(("count", "time", "seconds", "n", "ledger", "entry"), number),
    }
    return [
        (call.method, st.fixed_dictionaries(parts).map(partial(_filled, call.path.removeprefix(TOPIC))))
        for call in CALLS.calls
    ]


def _filled(path: str, parts: dict[str, str]) -> str:
    return path.format(**parts)


_ROUTES = _topic_calls()
_QUERIES = st.sampled_from(
    [
        "",
        "",
        "?force=true",
        "?messageTTL=5",
        "?initialPosition=earliest&messagePosition=3",
        "?" + "&" * 500,
        "?x=%ff",
    ]
)
_BODIES: dict[str, st.SearchStrategy[Any]] = {
    **{name: by_type(inspect.type_info(type_)) for name, (_, type_) in POLICY_CALLS.items()},
    **{name: by_type(inspect.type_info(kept.type)) for name, kept in KEPT.items()},
    **{
        f"backlogQuota?backlogQuotaType={kind}": by_type(inspect.type_info(BacklogQuota))
        for kind in QUOTA_TYPES
    },
    "s/dispatchRate": by_type(inspect.type_info(DispatchRate)),
    "permissions/role": st.lists(st.sampled_from(["produce", "consume"]), max_size=3),
    "backlogQuotaMap": st.none(),
    ALL_POLICIES: st.none(),
}
_POLICIES = st.sampled_from(sorted(_BODIES))
_position = st.fixed_dictionaries(
    {"ledgerId": st.sampled_from([1, 2, -1, 2**63 - 1]), "entryId": st.sampled_from([0, 3, -1, 2**63 - 1])},
    optional={"batchIndex": _number, "excluded": st.booleans()},
)


@st.composite
def policy(draw: st.DrawFn, prefix: str) -> dict[str, Any]:
    """A call on a policy of a topic or of a namespace."""
    name = draw(_POLICIES)
    method = draw(st.sampled_from(["POST", "POST", "PUT", "DELETE", "GET"]))
    return {"command": "ADMIN", "method": method, "path": f"{prefix}/{name}", "body": draw(_BODIES[name])}


@st.composite
def call(draw: st.DrawFn, topic: str | None) -> dict[str, Any]:
    """An admin call on a topic, or on the namespace of all topics."""
    if topic is None:
        prefix = f"/namespaces/public/{draw(st.sampled_from(['default', 'more', 'new', '%00']))}"
        if draw(st.booleans()):
            return draw(policy(prefix))
        rest = draw(
            st.sampled_from(
                ["", "/unload", "/clearBacklog", "/clearBacklog/s", "/unsubscribe/s", "/bundles", "/properties", "/property/a/b",
                 "/property/a", "/permissions/subscription/s/role", "/topics", "?force=true", "/nonsense"]
            )
        )  # fmt: skip
        method = draw(st.sampled_from(["GET", "PUT", "POST", "DELETE"]))
        body = draw(st.none() | anything)
        if draw(st.integers(0, 3)) == 0:  # the topics of a namespace
            prefix, rest = (
                draw(st.sampled_from(["/persistent", "/non-persistent"]))
                + prefix.removeprefix("/namespaces"),
                "",
            )
            prefix += draw(st.sampled_from(["", "/partitioned", "?mode=ALL", "?bundle=x"]))
        return {"command": "ADMIN", "method": method, "path": prefix + rest, "body": body}
    prefix = "/" + topic.replace("://", "/")
    if draw(st.booleans()):
        return draw(policy(prefix))
    if draw(st.integers(0, 9)) == 0:
        body = draw(
            st.integers(0, 9)
            | _number
            | st.fixed_dictionaries({"partitions": _number, "properties": st.just({"a": "b"})})
        )
        method = draw(st.sampled_from(["PUT", "PUT", "POST", "DELETE", "GET"]))
        rest = draw(
            st.sampled_from(
                ["/partitions", "/partitions", "/partitions?force=true", "/partitioned-stats", "/properties"]
            )
        )
        return {"command": "ADMIN", "method": method, "path": prefix + rest, "body": body}
    method, rest_of = draw(st.sampled_from(_ROUTES))
    path = prefix + draw(rest_of) + draw(_QUERIES)
    return {
        "command": "ADMIN",
        "method": method,
        "path": path,
        "body": draw(st.none() | _position | anything),
    }


# -- damage -----------------------------------------------------------------------------------------------------------


def size(largest: int) -> st.SearchStrategy[int]:
    """Sizes up to `largest`, each order of magnitude as likely as another."""
    bits = largest.bit_length()
    return st.integers(0, bits).map(lambda exponent: min(largest, 2**exponent))


def nested(depth: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(depth):
        tree = [tree]
    return tree


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a tree."""
    inside: Any = (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    )
    return [path, *(found for key, value in inside for found in places(value, (*path, key)))]


def apart(tree: Any) -> Any:
    """A copy in which no two places share a value: a long list of one value would else become long in each item at once."""
    if isinstance(tree, dict):
        return {key: apart(value) for key, value in tree.items()}
    return [apart(value) for value in tree] if isinstance(tree, list) else tree


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


@st.composite
def damaged(draw: st.DrawFn, tree: dict[str, Any], largest: int) -> dict[str, Any]:
    """A tree with one value that is too long, of another type, at the edge of its type, missing, or unknown."""
    tree = apart(tree)  # parts of it are the pools' own
    path = draw(st.sampled_from(places(tree)[1:] or [("command",)]))
    holder, key = at(tree, path[:-1]), path[-1]
    value = holder[key] if isinstance(holder, list) or key in holder else None
    match draw(st.sampled_from(["edge", "edge", "long", "long", "long", "gone", "unknown"])):
        case "edge":
            holder[key] = draw(_number | anything)
        case "long" if isinstance(value, list):
            value = value or [
                draw(st.sampled_from([1, -1, {"ledgerId": 1, "entryId": 0}, {"key": "", "value": ""}]))
            ]
            # its items may have been made long before
            holder[key] = value * min(draw(size(largest)), 1 + 8 * largest // len(repr(value)))
        case "long" if isinstance(value, dict) and path[-1] != "command":
            holder[key] = {**value, **{str(number): draw(anything) for number in range(1)}} | {
                str(number): "" for number in range(draw(size(largest)) // 8)
            }
        case "long" if isinstance(value, bytes):
            holder[key] = (value or b"\0") * min(draw(size(largest)), 1 + 8 * largest // len(value or b"\0"))
        case "long":
            holder[key] = str(value or "x") * min(draw(size(largest)), largest // len(str(value or "x")))
        case "gone" if isinstance(holder, dict):
            holder.pop(key, None)
        case _:
            (holder if isinstance(holder, dict) else tree)[draw(text)] = draw(anything)
    return tree


DEEP = {
    "JSON lists": (b"[", b"]"),
    "JSON objects": (b'{"a":', b"}"),
    "MessagePack lists": (b"\x91", b""),
    "MessagePack maps": (b"\x81\xa1a", b""),
    "message ids": (b'{"ledgerId":1,"entryId":1,"first_chunk_message_id":', b"}"),
}
_HEADS = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xde\xff\xff",
          b"\xc1", b"\xff", b"\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0", b'"', b"\\ud800", b"NaN", b"1e999", b"9" * 5000]  # fmt: skip


@st.composite
def encoded(draw: st.DrawFn, tree: dict[str, Any], largest: int) -> bytes:
    """A tree as JSON or MessagePack, perhaps with damaged bytes."""
    binary = draw(st.booleans())
    if binary and not all(
        fits(value) for value in [at(tree, path) for path in places(tree)] if isinstance(value, int)
    ):
        binary = False
    value: bytes = msgspec.msgpack.encode(tree) if binary else _json(tree)
    match draw(st.sampled_from(["whole"] * 6 + ["deep", "cut", "insert", "twice", "replace"])):
        case "deep":
            begin, end = draw(st.sampled_from(sorted(DEEP.values())))
            depth = draw(size(max(1, largest // len(begin))))
            deep = begin * depth + (b"{}" if end else b"\xc0") + end * depth
            known = draw(st.sampled_from([b"%s", b'{"command":"ADMIN","method":"POST","path":"/namespaces/a/b/x","body":%s}',
                                          b'{"command":"SEEK","consumer_id":1,"request_id":1,"message_id":%s}',
                                          b"\x84\xa7command\xa5ADMIN\xa6method\xa3PUT\xa4path\xa2/x\xa4body%s"]))  # fmt: skip
            value = known % deep
        case "cut":
            value = value[: draw(st.integers(0, len(value)))]
        case "insert":
            place = draw(st.integers(0, len(value)))
            value = (
                value[:place]
                + draw(st.sampled_from(_HEADS) | st.binary(min_size=1, max_size=4))
                + value[place:]
            )
        case "replace":
            place = draw(st.integers(0, len(value)))
            value = value[:place] + draw(st.binary(min_size=1, max_size=2)) + value[place + 1 :]
        case "twice":
            value = value[:-1] + b"," + value[1:] if value[:1] == b"{" else value * 2
    return value


def fits(value: int) -> bool:
    """Whether MessagePack has the number."""
    return -(2**63) <= value < 2**64


def _json(tree: Any) -> bytes:
    return msgspec.json.encode(_plain(tree))


def _plain(tree: Any) -> Any:
    """JSON has numbers of any length, msgspec only writes those of 64 bits."""
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(value) for value in tree] if len(tree) < 1000 else tree
    if isinstance(tree, bytes):
        return base64.b64encode(tree).decode()
    if isinstance(tree, int) and not fits(tree):
        return msgspec.Raw(str(tree).encode())
    return tree
