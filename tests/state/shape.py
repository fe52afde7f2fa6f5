"""The shape of a broker's encoded state: the form of every structure, and the name, type and default of each field.

`shape` describes the current code. ``tests/golden/shapes`` has the released shapes, one file per `codec.VERSION`.
"""

from typing import Any

import msgspec
from msgspec import inspect

from streaming.broker.ledger.ack_holes import AckHoles
from streaming.broker.non_persistent.topic import NonPersistentTopic
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.state.codec import PartitionState

Shape = dict[str, dict[str, Any]]
"""Structure → ``form``: how it is encoded; ``fields``: in the order of the encoding, each with type and default."""

ROOTS = (PartitionState, PersistentTopic, NonPersistentTopic)
"""What `streaming.broker.state.codec` encodes separately. Everything else is part of one of these."""


def shape() -> Shape:
    """The shape of the state in the current code."""
    found: Shape = {}
    for root in ROOTS:
        _name(inspect.type_info(root), found)
    return dict(sorted(found.items()))


def _name(type_: Any, found: Shape) -> str:
    """A type as text. Adds the structures in it to `found`."""
    match type_:
        case inspect.Metadata(type=plain):  # a unit, which changes no encoding
            return _name(plain, found)
        case inspect.StructType(cls=cls):
            if cls.__name__ not in found:
                found[cls.__name__] = {}  # it may contain itself
                found[cls.__name__] = _structure(type_, found)
            return str(cls.__name__)
        case inspect.NamedTupleType(cls=cls, fields=fields):
            found[cls.__name__] = {"form": "array", "fields": [_field(each, found) for each in fields]}
            return str(cls.__name__)
        case inspect.CustomType(cls=cls):
            return str(cls.__name__)
        case inspect.UnionType(types=types):
            return " | ".join(sorted(_name(each, found) for each in types))
        case inspect.DictType(key_type=key, value_type=value):
            return f"{{{_name(key, found)}: {_name(value, found)}}}"
        case inspect.ListType(item_type=item):
            return f"[{_name(item, found)}]"
        case inspect.TupleType(item_types=items):
            return f"({', '.join(_name(each, found) for each in items)})"
        case inspect.LiteralType(values=values):
            return " | ".join(map(repr, sorted(values, key=str)))
        case _:
            limits = {
                name: limit for name in ("ge", "le") if (limit := getattr(type_, name, None)) is not None
            }
            name = type(type_).__name__.removesuffix("Type").lower()
            return name + "".join(f" {name} {limit}" for name, limit in limits.items())


def _structure(type_: inspect.StructType, found: Shape) -> dict[str, Any]:
    form = "array" if type_.array_like else "map"
    if type_.cls.__struct_config__.omit_defaults and not type_.array_like:
        form += " without defaults"
    if type_.tag is not None:
        form += f" tagged {type_.tag}"
    return {"form": form, "fields": [_field(each, found) for each in type_.fields]}


def _field(field: inspect.Field, found: Shape) -> dict[str, Any]:
    described: dict[str, Any] = {"name": field.encode_name, "type": _name(field.type, found)}
    if field.default is not msgspec.NODEFAULT:
        described["default"] = _words(field.default)
    elif field.default_factory is not msgspec.NODEFAULT:
        described["default"] = _words(field.default_factory())
    return described


def _words(value: Any) -> str:
    """A default as text. For a structure, only what differs from its own defaults, which are listed separately."""
    if isinstance(value, msgspec.Struct):
        plain = {each.name: each for each in msgspec.structs.fields(value)}
        given = {
            name: own for name, field in plain.items() if (own := getattr(value, name)) != _default(field)
        }
        return f"{type(value).__name__}({', '.join(f'{name}={_words(own)}' for name, own in given.items())})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_words(key)}: {_words(own)}' for key, own in value.items())}}}"
    return "AckHoles()" if isinstance(value, AckHoles) else repr(value)


def _default(field: Any) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


# ---- two shapes


def changes(before: Shape, after: Shape) -> list[str]:
    """The differences, as one sentence each."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            found.append(f"{name} is {'new' if name in after else 'gone'}")
            continue
        if before[name]["form"] != after[name]["form"]:
            found.append(f"{name} is encoded as {after[name]['form']}, not {before[name]['form']}")
        ours, theirs = ({each["name"]: each for each in side[name]["fields"]} for side in (after, before))
        found += [f"{name}.{field} is gone" for field in theirs if field not in ours]
        found += [
            f"{name}.{field} is new, at place {[*ours].index(field)} of {len(ours)}"
            for field in ours
            if field not in theirs
        ]
        for field in sorted(ours.keys() & theirs.keys()):
            for part in ("type", "default"):
                was, now = theirs[field].get(part, "none"), ours[field].get(part, "none")
                if was != now:
                    found.append(f"{name}.{field} has the {part} {now}, not {was}")
        if sorted(ours) == sorted(theirs) and [*ours] != [*theirs]:
            found.append(f"{name} has its fields in another order")
    return found


def read_as_is(before: Shape, after: Shape) -> bool:
    """Whether msgspec reads the shape `before` as `after` without a step in `upgrades`."""
    for name, old in before.items():
        new = after.get(name)
        if new is None or new["form"] != old["form"]:
            return False
        known = {field["name"] for field in old["fields"]}
        kept = [field for field in new["fields"] if field["name"] in known]
        added = [field for field in new["fields"] if field["name"] not in known]
        if old["form"].startswith("array"):  # fields are identified only by their places
            same = new["fields"] == old["fields"] + added
        else:
            same = sorted(kept, key=str) == sorted(old["fields"], key=str)
        if not same or not all("default" in field for field in added):
            return False
    return True
