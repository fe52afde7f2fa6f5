"""Policies in a file of YAML, with the names and units of Pulsar's admin API and of ``broker.conf``::

    profile: 4.x                      # the broker's defaults
    broker:                           # settings
      ttlDurationDefaultInSeconds: 3600
    namespaces:
      public/default:
        retention: {retentionTimeInMinutes: 60, retentionSizeInMB: 512}
    topics:
      persistent://public/default/orders:
        messageTTL: 600               # s
        backlogQuota:
          destination_storage: {limitSize: 1000000, policy: consumer_backlog_eviction}

``null`` removes a policy. ``schemas/policies.schema.json`` describes the file for editors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pyarrow as pa
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarbool import ScalarBoolean
from ruamel.yaml.scalarfloat import ScalarFloat

from streaming.broker.admin_requests import topic_path
from streaming.broker.names import is_namespace_name
from streaming.broker.policies.hierarchy import Policies
from streaming.log.table import LOGICAL, LogError, log_table
from streaming.log.yaml_files import NotYaml, read_yaml

ENDINGS = (".yaml", ".yml")

SECTIONS = ("profile", "broker", "namespaces", "topics")

POLICIES = tuple(name for name in Policies.__struct_fields__ if name not in ("kept", "properties"))
"""The policies that a file may set, each by one of its names."""

_QUOTA, _RATES = "backlogQuota", "subscriptionDispatchRates"


def setting_descriptions() -> dict[str, str]:
    """What each setting of the broker means, as in docs/reference/settings.md."""
    schema = msgspec.json.decode(files("schemas").joinpath("policies.schema.json").read_bytes())
    settings = schema["$defs"]["ServiceConfiguration"]["properties"]
    return {name: each.get("description", "") for name, each in settings.items()}


SHOWN = 20
"""The most mistakes of a file that are told."""


def mistakes(name: str, found: Sequence[str]) -> str:
    """What is wrong with a file of policies."""
    count = (
        "a mistake"
        if len(found) == 1
        else f"more than {SHOWN} mistakes"
        if len(found) > SHOWN
        else f"{len(found)} mistakes"
    )
    return "\n  ".join([f"{name} has {count}, so nothing was replayed:", *found[:SHOWN]])


class PolicyFile(NamedTuple):
    """The policies of a file as a log of ADMIN and BROKER_CONFIG commands (columns `LOGICAL`), and the line of each."""

    commands: pa.Table
    lines: list[int]


class _Command(NamedTuple):
    line: int
    topic: str | None
    fields: dict[str, Any]


def read_policy_file(path: Path) -> PolicyFile:
    """Reads a file. Raises `LogError` with the line of each mistake, and `FileNotFoundError`."""
    try:
        document = read_yaml(path, with_lines=True)
    except NotYaml as error:
        raise LogError(f"{path}: {error}") from error
    if not isinstance(document, CommentedMap):
        raise LogError(f"{path}: expected some of {', '.join(SECTIONS)} at the top")
    found: list[str] = []
    commands = list(_commands(document, found))
    if found:
        raise LogError(mistakes(str(path), found))
    table = log_table(
        LOGICAL,
        timestamp=[0] * len(commands),
        topic=pa.array([each.topic for each in commands], pa.string()),
        value=[msgspec.json.encode(each.fields) for each in commands],
    )
    return PolicyFile(table, [each.line for each in commands])


def _commands(document: CommentedMap, mistakes: list[str]) -> Iterator[_Command]:
    for section, content in document.items():
        line = _line(document, section)
        if section not in SECTIONS:
            mistakes.append(f"line {line}: {section}: expected {', '.join(SECTIONS)}")
        elif section == "profile":
            yield _Command(line, None, {"command": "BROKER_CONFIG", "profile": _version(content)})
        elif not isinstance(content, CommentedMap):
            mistakes.append(f"line {line}: {section} must have names, each with a value")
        elif section == "broker":
            for name, value in content.items():
                command = {"command": "BROKER_CONFIG", "settings": {str(name): _plain(value)}}
                yield _Command(_line(content, name), None, command)
        else:
            for name, policies in content.items():
                if not isinstance(policies, CommentedMap):
                    mistakes.append(
                        f"line {_line(content, name)}: {name} must have policies, each with a value"
                    )
                elif section == "namespaces" and not is_namespace_name(str(name)):
                    mistakes.append(
                        f"line {_line(content, name)}: {name} is not a namespace: write TENANT/NAMESPACE"
                    )
                else:
                    yield from _of(section, str(name), policies, mistakes)


def _of(section: str, name: str, policies: CommentedMap, mistakes: list[str]) -> Iterator[_Command]:
    """The commands that set the policies of a namespace or a topic."""
    topic = None
    if section == "namespaces":
        base = f"/namespaces/{name}/"
    else:
        topic = name if "://" in name else f"persistent://{name if '/' in name else f'public/default/{name}'}"
        base = topic_path(topic, "/")
    for policy, value in policies.items():
        line = _line(policies, policy)
        if policy in (_QUOTA, _RATES):
            if not isinstance(value, CommentedMap):
                mistakes.append(
                    f"line {line}: {policy} must have {'types' if policy == _QUOTA else 'subscriptions'}"
                )
                continue
            for key, each in value.items():
                call = f"{_QUOTA}?backlogQuotaType={key}" if policy == _QUOTA else f"{quote(str(key), safe='')}/dispatchRate"  # fmt: skip
                yield _Command(_line(value, key), topic, _call(base + call, each))
        else:
            yield _Command(line, topic, _call(base + str(policy), value))


def _version(value: Any) -> Any:
    """The name of a profile. Without quotes, YAML takes 2.10 for the number 2.1."""
    if isinstance(value, ScalarFloat):
        return str(float(value)).ljust(value._width, "0")  # type: ignore[attr-defined]
    return _plain(value)


def _plain(value: Any) -> Any:
    """A value, which is one of JSON's, without what ruamel's types add."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    for types, type_ in (((bool, ScalarBoolean), bool), (int, int), (float, float), (str, str)):
        if isinstance(value, types):
            return type_(value)
    assert value is None
    return None


def _call(path: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {"command": "ADMIN", "method": "DELETE", "path": path}
    return {"command": "ADMIN", "method": "POST", "path": path, "body": _plain(value)}


def _line(mapping: CommentedMap, key: object) -> int:
    """The line of a key, from 1; that of the whole mapping if the key is merged into it (``<<``)."""
    found = (mapping.lc.data or {}).get(key)
    line: int = mapping.lc.line if found is None else found[0]
    return line + 1
