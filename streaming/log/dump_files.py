"""Settings and policies as a real cluster has them, as commands that set them:

* ``broker.conf`` and ``standalone.conf``, or what `pulsar-admin brokers get-runtime-config` prints,
* the JSON of ``GET /brokers/configuration/runtime``,
* the JSON that `pulsar-admin namespaces policies` prints,
* the JSON of a topic's policies, by itself or in the events of ``__change_events``.

What is in a file tells which of them it is. Each part is translated where its names are known: `streaming.log.broker_settings`,
`streaming.broker.admin.namespace_policies` and `streaming.broker.policies.topic_policies`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from schemas.commands import Profile
from streaming.broker.admin import namespace_policies
from streaming.broker.admin_requests import topic_path
from streaming.broker.config import is_known
from streaming.broker.errors import AdminError
from streaming.broker.names import base_of
from streaming.broker.policies import topic_policies
from streaming.log.broker_settings import sort_out
from streaming.log.properties import SETTING, Property
from streaming.log.table import LogError

Document = dict[str, Any]

_PROFILE: Profile = "4.0"
"""Which values are bad does not depend on it."""
_SPACE = re.compile(r"\s*")
_EVENT = "topicPoliciesEvent"
_MOST_NAMED = 20
_LONGEST_NUMBER = 40
NOTHING_ELSE = " 0 without effect here"
"""In the note on policies that are all applied."""


class Setting(NamedTuple):
    """A command that sets something: its `place` in the file, its topic, and its fields. `whole`: what it is about has no other
    policies than those of the file."""

    place: str
    topic: str | None
    fields: dict[str, Any]
    whole: bool = False


class DumpCommands(NamedTuple):
    """A file as commands, what is wrong with it, and what to tell about it."""

    settings: list[Setting]
    mistakes: list[str]
    notes: list[str]


# ---- JSON


class NotJson(ValueError):
    """A text is not JSON. The error says where and why."""


def read_documents(text: str) -> list[Document]:
    """The objects in a text, one after the other or in a list. Raises `NotJson`."""
    decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number, parse_int=_integer)
    found: list[Any] = []
    at = _SPACE.match(text, 0).end()  # type: ignore[union-attr]
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise NotJson(f"line {error.lineno}: this is not JSON: {error.msg}") from None
        except RecursionError:
            raise NotJson("it nests too deeply") from None
        except ValueError as error:
            raise NotJson(f"{error}") from None
        found += value if isinstance(value, list) else [value]
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if not all(isinstance(each, dict) for each in found):
        raise NotJson("expected an object in braces")
    return found


def _once(pairs: list[tuple[str, Any]]) -> Document:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice[:80]} occurs twice: remove one of them")
    return found


def _integer(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        _no_number(f"{text[:_LONGEST_NUMBER]}…")
    return int(text)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number that can be used: write another one")


# ---- what a document is


def is_dump(document: Mapping[str, Any]) -> bool:
    """Whether an object is one of those that a real cluster shows."""
    return _kind(document) is not None


def _kind(document: Mapping[str, Any]) -> str | None:
    if isinstance(document.get(_EVENT), dict):
        return "event"
    counts = {
        "settings": sum(map(is_known, document)),
        "namespace": sum(name in namespace_policies.NAMES for name in document),
        "topic": sum(name in topic_policies.NAMES for name in document),
    }
    likeliest = ("settings", "namespace", "topic")
    if not all(isinstance(value, str) for value in document.values()):  # a broker shows its settings as texts
        likeliest = ("namespace", "topic", "settings")
    kind = max(likeliest, key=lambda each: counts[each])
    return kind if counts[kind] else None


def translate_documents(
    documents: list[Document], about: str | None, namespaces: Iterable[str], topics: Iterable[str]
) -> DumpCommands:
    """Objects that a cluster shows as commands. `about`: the namespace or topic that an object is about, if it was given. The log has
    `namespaces` and `topics`. Raises `LogError`."""
    kinds = {_kind(document) for document in documents}
    if kinds == {"event"}:
        return _events(documents, set(topics))
    if len(documents) != 1 or None in kinds:
        raise LogError(
            "expected the settings of a broker, the policies of a namespace or of a topic as Pulsar shows them, or policies as in "
            "docs/operate/policies.md"
        )
    (document,) = documents
    match _kind(document):
        case "settings":
            if about is not None:
                raise LogError(f"it has the settings of a broker, which are not about {about}")
            return translate_settings([Property(name, value, 0, True) for name, value in document.items()])
        case "namespace":
            namespace = about or _only(namespaces)
            if "://" in namespace or namespace.count("/") != 1:
                raise LogError(f"it has the policies of a namespace, and {namespace} is not the name of one")
            return namespace_settings(document, namespace, {}, whole=True)
        case _:
            if about is None:
                raise LogError(
                    "it has the policies of a topic and does not name it: write --policies TOPIC=FILE, such as "
                    "persistent://public/default/orders=FILE"
                )
            if "://" not in about and about.count("/") == 1:
                raise LogError(f"it has the policies of a topic, and {about} is a namespace")
            return topic_settings(document, full_topic(about), {}, whole=True)


def _only(namespaces: Iterable[str]) -> str:
    found = sorted(namespaces)
    if len(found) == 1:
        return found[0]
    named = ", ".join(found[:_MOST_NAMED])
    raise LogError(
        f"it has the policies of a namespace and does not name it, and the log has {len(found):,} ({named}): write --policies "
        f"{found[0] if found else 'TENANT/NAMESPACE'}=FILE"
    )


def full_topic(name: str) -> str:
    """The name of a topic with what may be left out."""
    return name if "://" in name else f"persistent://{name if '/' in name else f'public/default/{name}'}"


# ---- settings


NO_EFFECT = "no setting in it has an effect here"


def translate_settings(properties: list[Property]) -> DumpCommands:
    """The settings of a broker as commands. No value of a setting without effect is in them, nor in a text."""
    given = {each.name: each for each in properties}
    found = sort_out(
        {each.name: each.value for each in given.values() if each.separated and SETTING.fullmatch(each.name)},
        _PROFILE,
    )
    places = {name: _line(each.line) or name for name, each in given.items()}
    settings = [
        Setting(places[name], None, {"command": "BROKER_CONFIG", "settings": {name: value}})
        for name, value in found.applied.items()
    ]
    if found.profile is not None:
        command = {"command": "BROKER_CONFIG", "profile": found.profile}
        settings.append(Setting(places["profile"], None, command))
    notes = [found.counted]
    notes += [f"not applied: {_at(given[name])}{why}" for name, why in found.not_applied.items()]
    odd = [each for each in given.values() if not (each.separated and SETTING.fullmatch(each.name))]
    unknown = [
        f"unknown, so Pulsar ignores it, too: {_at(given[name])}{name}{f' (perhaps {near})' if near else ''}"
        for name, near in found.unknown.items()
    ]
    unknown += [f"{_at(each)}this is not a setting: expected NAME=VALUE" for each in odd]
    notes += _some(unknown)
    notes += _some(
        f"{_at(each)}{each.name} is set again on line {given[each.name].line}, which counts"
        for each in properties
        if each.name in found.applied and each is not given[each.name]
    )
    mistakes = [f"{_at(given[name])}{why}" for name, why in found.bad.items()]
    if not settings and not mistakes:
        mistakes = [NO_EFFECT]
    return DumpCommands(settings, mistakes, notes)


def _line(line: int) -> str:
    return f"line {line}" if line else ""


def _at(each: Property) -> str:
    return f"line {each.line}: " if each.line else ""


def _some(texts: Iterable[str]) -> list[str]:
    found = list(texts)
    more = len(found) - _MOST_NAMED
    return found[:_MOST_NAMED] + [f"and {more:,} more like this"] * (more > 0)


# ---- policies


def namespace_settings(
    policies: Mapping[str, Any], namespace: str, places: Mapping[str, str], *, whole: bool
) -> DumpCommands:
    """The policies of a namespace as a PUT of the namespace, which takes what calls on single policies refuse: for each policy, or, if they
    are `whole`, for all.

    `places`: where each name is, if it is not its own place. `whole`: the namespace has no other policies.
    """
    taken = namespace_policies.take(policies)
    mistakes = []
    body: dict[str, Any] = {}
    for name, value in taken.body.items():
        if whole and namespace_policies.is_unset(name, value):
            continue
        try:
            namespace_policies.read({name: value}, namespace)
            body[name] = value
        except AdminError as error:
            place = f"{places[name]}: " if name in places else ""
            mistakes.append(f"{place}{name}: {error.reason}")
    path = f"/namespaces/{namespace}"
    bodies = [(namespace, body)] if whole else [(places[name], {name: body[name]}) for name in body]
    settings = [
        Setting(place, None, {"command": "ADMIN", "method": "PUT", "path": path, "body": each}, whole)
        for place, each in bodies
    ]
    notes = _policy_notes(taken.applied, taken.without_effect, taken.not_applied, taken.unknown)
    return DumpCommands(settings, mistakes, notes)


def topic_settings(
    policies: Mapping[str, Any], topic: str, places: Mapping[str, str], *, whole: bool
) -> DumpCommands:
    """The policies of a topic as commands."""
    taken = topic_policies.take(
        {name: value for name, value in policies.items() if not (whole and value is None)}
    )
    base = topic_path(topic, "/")
    settings = []
    for name, call, body in taken.calls:
        command: dict[str, Any] = {"command": "ADMIN", "method": "DELETE", "path": base + call}
        if body is not None:
            command |= {"method": "POST", "body": body}
        settings.append(Setting(places.get(name, name), topic, command, whole))
    if whole and not taken.calls:  # what the log sets on it does not hold
        nothing = {"command": "ADMIN", "method": "DELETE", "path": f"{base}messageTTL"}
        settings.append(Setting(topic, topic, nothing, whole))
    notes = _policy_notes(
        sum(each.body is not None for each in taken.calls),
        taken.without_effect,
        taken.not_applied,
        taken.unknown,
    )
    return DumpCommands(settings, [], notes)


def _policy_notes(
    applied: int, without_effect: list[str], not_applied: Mapping[str, str], unknown: list[str]
) -> list[str]:
    counted = f"{applied:,} polic{'y' if applied == 1 else 'ies'} applied"
    notes = [f"{counted}, {len(without_effect):,} without effect here"]
    notes += [f"not applied: {name}: {why}" for name, why in not_applied.items()]
    return notes + _some(f"unknown, so Pulsar ignores it, too: {name[:80]}" for name in unknown)


def _events(documents: list[Document], topics: set[str]) -> DumpCommands:
    """The topics' policies of events. The last event of a topic counts. Topics that the log does not have are left out."""
    latest: dict[str, Mapping[str, Any]] = {}
    for document in documents:
        event = document[_EVENT]
        names = [event.get(name) for name in ("domain", "tenant", "namespace", "topic")]
        policies = event.get("policies") or {}
        if not all(isinstance(name, str) for name in names) or not isinstance(policies, dict):
            raise LogError(f"{_EVENT} must have a domain, a tenant, a namespace, a topic and policies")
        topic = "{}://{}/{}/{}".format(*names)
        latest[topic] = policies
    found = DumpCommands([], [], [])
    known = topics.union(map(base_of, topics))
    for topic, policies in latest.items():
        if known and topic not in known:
            continue
        part = topic_settings(policies, topic, {}, whole=True)
        found.settings.extend(each._replace(place=f"{topic}: {each.place}") for each in part.settings)
        found.notes.extend(f"{topic}: {note}" for note in part.notes[1:])
    if topics and not found.settings:
        found.mistakes.append("the log has none of its topics")
    counted = (
        f"the policies of {len(latest):,} topic{'' if len(latest) == 1 else 's'}, as far as the log has them"
    )
    return found._replace(notes=[counted, *_some(found.notes)])
