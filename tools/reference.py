"""The reference in `docs/`, written from the contracts themselves: `make docs`. A test holds it fresh."""

import re
import typing
from pathlib import Path
from typing import Any

import msgspec

from schemas import commands as c
from schemas.effects import KINDS, RESPONSES
from schemas.outputs import IDENTITY, OUTPUT
from streaming.broker.admin import ROUTES
from streaming.broker.config import PROFILES, WITHOUT_EFFECT, ServiceConfiguration
from streaming.broker.policies.admin_calls import POLICY_CALLS
from tools.support import support

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "<!-- Written by `make docs` from the code. Do not edit. -->\n"


def commands() -> str:
    """``docs/commands.md``: every command and its fields."""
    parts = [
        NOTE,
        "# Commands\n",
        _doc(c),
        "\n## Publish, the short form\n",
        _doc(c.Publish),
        _fields(c.Publish),
    ]
    for command in typing.get_args(c.AnyCommand):
        parts += [f"\n## {command.__struct_config__.tag}\n", _doc(command), _fields(command)]
    parts.append("\n# Nested messages\n")
    for part in (
        c.MessageIdData,
        c.MessageMetadata,
        c.KeyValue,
        c.IntRange,
        c.EncryptionKeys,
        c.KeySharedMeta,
        c.SchemaData,
    ):
        parts += [f"\n## {part.__name__}\n", _doc(part), _fields(part)]
    policies = ", ".join(f"`{name}`" for name in sorted([*POLICY_CALLS, "backlogQuota"]))
    parts.append(
        f"""
# Admin calls

Policies (`POST` or `PUT` sets, `DELETE` removes), below `/namespaces/TENANT/NAMESPACE/` or
`/persistent/TENANT/NAMESPACE/TOPIC/`: {policies}

Calls on all topics of a namespace, below `/namespaces/TENANT/NAMESPACE`: `PUT /unload`, `POST /clearBacklog`,
`POST /clearBacklog/{{subscription}}`.

Calls on a topic, below `/persistent/TENANT/NAMESPACE/TOPIC`:

"""
    )
    for method, pattern, handler in ROUTES:
        path = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", pattern.pattern)
        parts.append(f"* `{method} {path}`: {_first_line(handler)}\n")
    parts.append(
        "* `PUT /partitions`, `POST /partitions`: make a partitioned topic, give it more partitions\n"
    )
    return "".join(parts)


def outputs() -> str:
    """``docs/outputs.md``: every output column and kind."""
    parts = [NOTE, "# Output rows\n\n", f"A row is identified by ({', '.join(IDENTITY)}): drop repeats by it.\n\n",
             "| column | type | what |\n|---|---|---|\n"]  # fmt: skip
    parts += [f"| `{f.name}` | {f.type} | {f.metadata[b'doc'].decode()} |\n" for f in OUTPUT]
    parts.append("\n## Kinds\n\nAnswers to clients are marked *; they go to the response topic too.\n")
    for effect, kind in KINDS.items():
        star = "*" if kind in RESPONSES else ""
        columns = ", ".join(f"`{name}`" for name in effect._fields)
        parts.append(f"\n### {kind}{star}\n\n{_doc(effect)}Columns: {columns}\n")
    return "".join(parts)


def settings() -> str:
    """``docs/settings.md``: the broker's settings and their defaults by profile."""
    parts = [NOTE, "# Broker settings\n\nGiven by `BROKER_CONFIG`, with Pulsar's names.\n\n",
             "| setting | " + " | ".join(PROFILES) + " |\n|---|" + "---|" * len(PROFILES) + "\n"]  # fmt: skip
    defaults = msgspec.to_builtins(ServiceConfiguration()) | {
        field.name: field.default for field in msgspec.structs.fields(ServiceConfiguration)
    }
    for name in ServiceConfiguration.__struct_fields__:
        values = (
            defaults[name] if name == "profile" else changes.get(name, defaults[name])
            for changes in PROFILES.values()
        )
        parts.append(f"| `{name}` | " + " | ".join(str(value) for value in values) + " |\n")
    parts.append(
        "\nTaken without effect: " + ", ".join(f"`{name}`" for name in sorted(WITHOUT_EFFECT)) + "\n"
    )
    return "".join(parts)


FILES = {"commands.md": commands, "outputs.md": outputs, "settings.md": settings, "support.md": support}


def _doc(thing: Any) -> str:
    text = (thing.__doc__ or "").strip()
    if not text or text.startswith(f"{getattr(thing, '__name__', '')}("):
        return "\n"
    return "\n" + "\n".join(line.strip() for line in text.splitlines()) + "\n\n"


def _first_line(thing: Any) -> str:
    return (
        (thing.__doc__ or "").strip().splitlines()[0]
        if thing.__doc__
        else thing.__name__.strip("_").replace("_", " ")
    )


def _fields(struct: Any) -> str:
    rows = ["| field | type | default |\n|---|---|---|\n"]
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        if field.required:
            default = "required"
        elif field.default is not msgspec.NODEFAULT:
            default = "" if field.default is None else f"`{field.default!r}`"
        else:
            default = "empty"
        rows.append(f"| `{field.encode_name}` | {_type(hints[field.name])} | {default} |\n")
    return "".join(rows)


def _type(hint: Any) -> str:
    arguments = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return " or ".join(f"`{argument}`" for argument in arguments)
    if origin in (list, dict):
        return f"{origin.__name__} of {', '.join(_type(argument) for argument in arguments)}"
    if arguments:
        return " or ".join(_type(argument) for argument in arguments)
    return str(getattr(hint, "__name__", hint)).replace("|", "or")


if __name__ == "__main__":
    for file, write in FILES.items():
        (DOCS / file).write_text(write())
