"""Files of policies. What is in a file tells whether it is one of Pulsar's own (see `streaming.log.dump_files`) or YAML, with the names and
units of Pulsar's admin API and of ``broker.conf``::

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

``null`` removes a policy. A namespace and a topic may also have the names that `pulsar-admin namespaces policies` shows, such as
``message_ttl_in_seconds``. ``schemas/policies.schema.json`` describes the file for editors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from errno import EFBIG
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, get_args
from urllib.parse import quote

import msgspec
import pyarrow as pa
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarbool import ScalarBoolean
from ruamel.yaml.scalarfloat import ScalarFloat

from schemas.printable import one_line
from schemas.undecodable import UNDECODABLE
from sinks.small_files import in_utf8, read_small
from streaming.broker.admin import namespace_policies
from streaming.broker.admin_requests import topic_path
from streaming.broker.names import is_namespace_name
from streaming.broker.policies import hierarchy, topic_policies
from streaming.log.dump_files import (
    NOTHING_ELSE,
    DumpCommands,
    NotJson,
    Setting,
    full_topic,
    is_dump,
    namespace_settings,
    read_documents,
    topic_settings,
    translate_documents,
    translate_settings,
)
from streaming.log.properties import read_properties
from streaming.log.table import LOGICAL, LogError, log_table
from streaming.log.yaml_files import NotYaml, read_yaml

ENDINGS = (".yaml", ".yml")

SECTIONS = ("profile", "broker", "namespaces", "topics")

POLICIES = tuple(name for name in hierarchy.Policies.__struct_fields__ if name not in ("kept", "properties"))
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
    return "\n  ".join(map(one_line, [f"{name} has {count}, so it is not used:", *found[:SHOWN]]))


class PolicyError(LogError):
    """Some policies can't take effect. `problems` has one text per mistake, which begins with its place."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        super().__init__(mistakes(name, problems))
        self.problems = tuple(problems)


class PolicyFile(NamedTuple):
    """The policies of a file as a log of ADMIN and BROKER_CONFIG commands (columns `LOGICAL`), and the place of each in the file.
    `whole`: whether the policies of a command's namespace or topic are no others than those of the file. `notes`: what to tell about it."""

    commands: pa.Table
    places: list[str]
    whole: list[bool]
    notes: list[str]


def read_policy_file(
    path: Path, about: str | None = None, namespaces: Iterable[str] = (), topics: Iterable[str] = ()
) -> PolicyFile:
    """Reads a file of policies or settings, in YAML or as a real cluster has them. What is in it tells its form.

    `about`: the namespace or topic that the file is about, if it does not say so. The log has `namespaces` and `topics`. Raises `LogError`
    with the place of each mistake, and `FileNotFoundError`.
    """
    try:
        found = _translated(path, about, namespaces, topics)
    except LogError as error:
        raise LogError(f"{path}: {error}") from error
    if found.mistakes:
        raise PolicyError(str(path), found.mistakes)
    table = log_table(
        LOGICAL,
        timestamp=[0] * len(found.settings),
        topic=pa.array([each.topic for each in found.settings], pa.string()),
        value=[msgspec.json.encode(each.fields) for each in found.settings],
    )
    return PolicyFile(
        table, [each.place for each in found.settings], [each.whole for each in found.settings], found.notes
    )


def is_log(path: Path) -> bool:
    """Whether a file of policies is a log of commands: by its name, if there is nothing else in it. Raises `FileNotFoundError`."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file of policies")
    if path.is_dir() or path.name.endswith((".parquet", ".jsonl.gz")):
        return True
    if not path.name.endswith(".jsonl"):
        return False
    with path.open("rb") as file:
        first = file.readline(_LONGEST_FIRST).strip()
    try:
        found = msgspec.json.decode(first)
    except UNDECODABLE:
        return not first.endswith(b"{")  # an object on several lines is none of a log's
    return not (isinstance(found, dict) and "command" not in found and is_dump(found))


_LONGEST_FIRST = 1 << 20
_COMMAND = re.compile(r'\s*\{[^{}\n]*"command"\s*:')
_PROPERTY = re.compile(
    r"[ \t]*(?:[A-Za-z][\w.]*)(?:[ \t]*=|[ \t]{2,}\S|[ \t]*:[ \t]*\S[^\n]*$)", re.MULTILINE
)
_SIGNIFICANT = re.compile(r"^[ \t]*([^#!\s][^\n]*)", re.MULTILINE)
_PROPERTY_ENDINGS = (".conf", ".properties")


def _translated(
    path: Path, about: str | None, namespaces: Iterable[str], topics: Iterable[str]
) -> DumpCommands:
    text = _text(path)
    if text.lstrip().startswith(("{", "[")):
        if _COMMAND.match(text):
            raise LogError("it is a log of commands: give it a name that ends in .jsonl")
        try:
            documents = read_documents(text)
        except NotJson as error:
            if not path.name.endswith(ENDINGS):
                raise LogError(str(error)) from error
        else:
            if not any(map(_is_own, documents)):
                return translate_documents(documents, about, namespaces, topics)
    elif _is_properties(path, text):
        if about is not None:
            raise LogError(f"it has the settings of a broker, which are not about {about}")
        return translate_settings(read_properties(text))
    return _read_yaml(path, about, namespaces, topics)


def _is_own(document: Mapping[str, Any]) -> bool:
    """Whether an object is in the layout of this module. A server of Magnetar shows its profile among its settings."""
    return any(name in SECTIONS for name in document if name != "profile") or set(document) == {"profile"}


def _text(path: Path) -> str:
    """The text of a file. As Java does, takes one that is not UTF-8 for Latin-1."""
    try:
        data = in_utf8(read_small(path))
    except OSError as error:
        if error.errno != EFBIG:
            raise
        raise LogError(error.strerror) from error
    if b"\0" in data:
        raise LogError("it is not a text: name another file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _is_properties(path: Path, text: str) -> bool:
    """Whether a text is Java's properties, and not YAML."""
    if path.name.endswith(_PROPERTY_ENDINGS):
        return True
    first = _SIGNIFICANT.search(text)
    if first is None or (path.name.endswith(ENDINGS) and "=" not in first[1].partition(":")[0]):
        return False
    line = first[1].rstrip("\r")
    return _PROPERTY.match(line) is not None and line.partition(":")[0].strip() not in SECTIONS


def _read_yaml(
    path: Path, about: str | None, namespaces: Iterable[str], topics: Iterable[str]
) -> DumpCommands:
    try:
        document = read_yaml(path, with_lines=True)
    except NotYaml as error:
        raise LogError(str(error)) from error
    if isinstance(document, CommentedMap) and not _is_own(document):
        plain = _plain(document)
        if is_dump(plain):
            return translate_documents([plain], about, namespaces, topics)
    if not isinstance(document, CommentedMap):
        raise LogError(f"expected some of {', '.join(SECTIONS)} at the top")
    if about is not None:
        raise LogError(f"it names what it is about: leave out {about}=")
    mistakes: list[str] = []
    notes: list[str] = []
    settings = list(_commands(document, mistakes, notes))
    return DumpCommands(settings, mistakes, notes)


def _commands(document: CommentedMap, mistakes: list[str], notes: list[str]) -> Iterator[Setting]:
    for section, content in document.items():
        line = _line(document, section)
        if section not in SECTIONS:
            mistakes.append(f"{line}: {section}: expected {', '.join(SECTIONS)}")
        elif section == "profile":
            yield Setting(line, None, {"command": "BROKER_CONFIG", "profile": _version(content)})
        elif not isinstance(content, CommentedMap):
            mistakes.append(f"{line}: {section} must have names, each with a value")
        elif section == "broker":
            for name, value in content.items():
                command = {"command": "BROKER_CONFIG", "settings": {str(name): _plain(value)}}
                yield Setting(_line(content, name), None, command)
        else:
            for name, policies in content.items():
                if not isinstance(policies, CommentedMap):
                    mistakes.append(f"{_line(content, name)}: {name} must have policies, each with a value")
                elif section == "namespaces" and not is_namespace_name(str(name)):
                    mistakes.append(
                        f"{_line(content, name)}: {name} is not a namespace: write TENANT/NAMESPACE"
                    )
                else:
                    yield from _of(section, str(name), policies, mistakes, notes)


def _of(
    section: str, name: str, policies: CommentedMap, mistakes: list[str], notes: list[str]
) -> Iterator[Setting]:
    """The commands that set the policies of a namespace or a topic: each by its own name, or by that in Pulsar's object of all."""
    topic = None
    if section == "namespaces":
        base = f"/namespaces/{name}/"
        shown = _shown(policies, namespace_policies.NAMES, namespace_policies.OWN_NAMES)
    else:
        topic = full_topic(name)
        base = topic_path(topic, "/")
        shown = _shown(policies, topic_policies.NAMES, topic_policies.OWN_NAMES)
    if shown:
        places = {each: _line(policies, each) for each in shown}
        translated = (
            namespace_settings(shown, name, places, whole=False)
            if topic is None
            else topic_settings(shown, topic, places, whole=False)
        )
        mistakes.extend(translated.mistakes)
        if len(translated.notes) > 1 or NOTHING_ELSE not in translated.notes[0]:
            notes.extend(f"{name}: {note}" for note in translated.notes)
        yield from translated.settings
    for policy, value in policies.items():
        line = _line(policies, policy)
        if policy in shown:
            continue
        if policy in (_QUOTA, _RATES):
            if value is None:  # no quota of either type; rates are of subscriptions that nobody names
                for type_ in get_args(hierarchy.QuotaType) if policy == _QUOTA else ():
                    yield Setting(line, topic, _call(f"{base}{_QUOTA}?backlogQuotaType={type_}", None))
                continue
            if not isinstance(value, CommentedMap):
                mistakes.append(
                    f"{line}: {policy} must have {'types' if policy == _QUOTA else 'subscriptions'}"
                )
                continue
            for key, each in value.items():
                call = f"{_QUOTA}?backlogQuotaType={key}" if policy == _QUOTA else f"{quote(str(key), safe='')}/dispatchRate"  # fmt: skip
                yield Setting(_line(value, key), topic, _call(base + call, each))
        else:
            yield Setting(line, topic, _call(base + str(policy), value))


def _shown(policies: CommentedMap, names: frozenset[str], own: frozenset[str]) -> dict[str, Any]:
    """The policies whose names are those in Pulsar's object of all. None are, if no name is of that object alone."""
    if not any(name in own for name in policies):
        return {}
    found = {str(name): _plain(value) for name, value in policies.items() if name in names}
    # By cluster in the object of a namespace, by itself with the name of the call.
    rate = found.get("subscriptionDispatchRate")
    if (
        names is namespace_policies.NAMES
        and rate
        and not all(isinstance(each, dict) for each in rate.values())
    ):
        del found["subscriptionDispatchRate"]
    return found


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


def _line(mapping: CommentedMap, key: object) -> str:
    """The line of a key; that of the whole mapping if the key is merged into it (``<<``)."""
    found = (mapping.lc.data or {}).get(key)
    line: int = mapping.lc.line if found is None else found[0]
    return f"line {line + 1}"
