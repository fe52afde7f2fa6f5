"""Other policies for a recorded log: what would this TTL have done?

The policies are themselves a small log of ADMIN and BROKER_CONFIG commands, or a file that stands for one (`streaming.log.policy_files`).
`streaming.log.pins` puts them over the log.

A policy that can't take effect would leave the result unchanged, as if that were the answer. So `read_policies` checks all of
them first. What the broker would refuse it asks the broker, by folding the pinned commands as a replay will.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import pyarrow as pa

from schemas.commands import (
    Admin,
    BrokerConfig,
    Decoded,
    MalformedCommand,
    Refused,
    Tick,
    decode,
    to_binary,
)
from schemas.effect_fields import AdminResponseFields
from schemas.effects import AdminResponse, Quarantined, Row
from schemas.records import RECORD
from streaming.broker import admin_requests
from streaming.broker.admin import namespace_policies, namespaces
from streaming.broker.broker import Broker
from streaming.broker.config import (
    PROFILE_OF,
    BadSetting,
    ServiceConfiguration,
    configuration,
    is_known,
    is_without_effect,
)
from streaming.broker.context import namespace_of
from streaming.broker.entries import NoEntries
from streaming.broker.names import base_of, is_namespace_name
from streaming.broker.policies.admin_calls import POLICY_CALLS, policy_of, unknown_fields
from streaming.broker.policies.hierarchy import NO_POLICIES, Policies
from streaming.broker.policies.kept import KEPT_WITHOUT_EFFECT
from streaming.log.broker_settings import nearest_setting, sort_out
from streaming.log.dump_files import NO_EFFECT, full_topic
from streaming.log.files import line_numbers, read_log
from streaming.log.pins import PolicyCommand, fields_of, fronts, keys_of
from streaming.log.policy_files import SHOWN, PolicyError, PolicyFile, is_log, read_policy_file
from streaming.log.policy_sources import policy_sources
from streaming.log.table import LOGICAL, LogError, log_table


def read_policies(
    source: str | Path | pa.Table,
    records: pa.Table,
    judge: Callable[[Sequence[str | None], Sequence[bytes]], Iterable[Decoded]],
    *,
    grows: bool = False,
) -> list[PolicyCommand]:
    """The policies in `source` for the log `records` (columns `RECORD`): what `policy_sources` or `read_log` take, or a log's table.

    `judge` decodes them, see `streaming.quality.gate`. `grows`: policies may be about topics and namespaces that the log does not have yet.
    Raises `PolicyError` with all mistakes: a record that is not a command
    or sets nothing, a topic or namespace that the log doesn't have, a policy that is set twice, and whatever the broker
    refuses. Raises `LogError` and `FileNotFoundError` if `source` can't be read.
    """
    name = "the table of policies" if isinstance(source, pa.Table) else str(source)
    known = _Log.of(records)
    table, places, whole, _ = _read(source, known)
    if grows:
        records = _with_topics(records, set(table["topic"].to_pylist()) - {*known.topics, None})
        known = _Log.of(records)
        known.namespaces.update(_named(table))
    topics, values = table["topic"].to_pylist(), table["value"].to_pylist()
    problems: list[tuple[int, str]] = []
    earlier: dict[Any, PolicyCommand] = {}
    policies: list[tuple[int, PolicyCommand]] = []
    for row, (place, topic, value, command) in enumerate(
        zip(places, topics, values, judge(topics, values), strict=True)
    ):
        if isinstance(command, Admin | BrokerConfig):
            found = []
            for of_topic, one in _on_partitions(topic, command, known):
                policy = PolicyCommand(place, of_topic, one, fields_of(value), whole[row])
                if not (mistakes := list(_mistakes(policy, known))):
                    policies.append((row, policy))
                found += [*mistakes, *_repeats(policy, earlier)]
        else:
            found = [command.cause if isinstance(command, Refused) else _OTHER]
        problems += [(row, f"{place}: {problem}") for problem in dict.fromkeys(found)]
        if len(problems) > SHOWN:
            break
    rows, pins = [row for row, _ in policies], [policy for _, policy in policies]
    if len(problems) <= SHOWN:
        refused = {(rows[i], f"{pins[i].place}: {text}") for i, text in _refusals(records, pins).items()}
        problems += refused
    if not len(table):
        problems.append((0, "it has no policies: write one ADMIN or BROKER_CONFIG command per line"))
    elif not problems and not any(map(_has_effect, pins)):
        problems.append((0, NO_EFFECT))
    if problems:
        raise PolicyError(name, [text for _, text in sorted(problems)])
    return pins


def _with_topics(records: pa.Table, topics: Iterable[str]) -> pa.Table:
    """A log that has some more topics."""
    rows = [
        {"partition": 0, "offset": 0, "timestamp": 0, "topic": each, "value": to_binary(Tick())}
        for each in (None, *sorted(topics))
    ]
    return pa.concat_tables([records, pa.Table.from_pylist(rows, RECORD)])


def _named(table: pa.Table) -> Iterator[str]:
    """The namespaces that policies are about."""
    for value in table["value"].to_pylist():
        with suppress(MalformedCommand):
            command = decode(value)
            about = namespaces.call_of(command.path) if isinstance(command, Admin) else None
            if about is not None:
                yield about[0]


def configuring(**fields: Any) -> pa.Table:
    """One BROKER_CONFIG with these fields, as a log."""
    value = msgspec.json.encode({"command": "BROKER_CONFIG"} | fields)
    return log_table(LOGICAL, timestamp=[0], topic=pa.array([None], pa.string()), value=[value])


def of_profile(profile: str) -> pa.Table:
    """The rules and defaults of a Pulsar version, as policies. Raises `LogError` if there is no such profile."""
    if profile not in PROFILE_OF:
        raise LogError(f"there is no profile {profile}: expected {' or '.join(PROFILE_OF)}")
    return configuring(profile=profile)


_OTHER = "neither an ADMIN nor a BROKER_CONFIG command: only these set policies"


def policy_notes(source: str | Path) -> list[str]:
    """What to tell about the files that `read_policies` reads: how many settings and policies are applied, how many have no effect, and which
    can't be applied. Raises as `read_policies` does for files that can't be read."""
    notes: list[str] = []
    for about, path in policy_sources(source):
        if is_log(path):
            found = _counted(read_log(path))
        else:
            file = read_policy_file(path, about, [_ANY])
            found = file.notes or _counted(file.commands)
        notes += [f"{path}: {note}" for note in found]
    return notes


def _counted(commands: pa.Table) -> list[str]:
    """How many settings of the commands are applied, if some have no effect."""
    settings: dict[str, Any] = {}
    for value in commands["value"].to_pylist():
        with suppress(MalformedCommand):
            command = decode(value)
            settings |= command.settings if isinstance(command, BrokerConfig) else {}
    return [sort_out(settings, "4.0").counted] if any(map(is_without_effect, settings)) else []


_ANY = "public/default"
"""Stands for the namespace that a file is about."""


class InForce(NamedTuple):
    """What files say of a topic: its `own` policies, those of its `namespace`, and the broker's `config`. None: they don't say."""

    own: Policies | None
    namespace: Policies | None
    config: ServiceConfiguration | None


def in_force(source: str | Path, topic: str | None) -> InForce:
    """What the files that `read_policies` reads say of a topic, or, without one, of what they are about. What they say of others is left out.
    A broker that carries their commands out tells.

    Raises `LogError` and `FileNotFoundError`, also if they say nothing of it.
    """
    abouts = [about for about, _ in policy_sources(source) if about is not None]
    named = topic or next((about for about in abouts if not is_namespace_name(about)), None)
    base = None if named is None else base_of(full_topic(named))
    namespace = next(iter(abouts), _ANY) if base is None else namespace_of(base)
    found = _read(source, _Log(set(), {namespace}, {}))
    broker, told, config = Broker(0, NoEntries()), InForce(None, None, None), dict[str, Any]()
    commands: list[tuple[str, Decoded]] = []
    for place, value in zip(found.places, found.commands["value"].to_pylist(), strict=True):
        command = _decoded(source, place, value)
        commands.append((place, command))
        if isinstance(command, BrokerConfig):
            given = fields_of(value)
            config = config | given | {"settings": config.get("settings", {}) | given.get("settings", {})}
    if config:
        combined = msgspec.convert(config, BrokerConfig)
        try:
            told = told._replace(config=configuration(combined.profile, combined.settings))
        except BadSetting as error:
            raise LogError(f"{source}: {error}") from None
        broker.apply(0, 0, None, combined, b"")
        broker.take()
    for offset, (place, command) in enumerate(commands, 1):
        if not isinstance(command, Admin):
            continue
        of_topic, of_namespace = admin_requests.topic_of(command.path), namespaces.call_of(command.path)
        if of_topic is not None and base_of(of_topic) == base:
            broker.apply(offset, 0, of_topic, command, b"")
            told = told._replace(own=NO_POLICIES)
        elif of_namespace is not None and of_namespace[0] == namespace:
            broker.apply(offset, 0, None, command, b"")
            told = told._replace(namespace=broker.namespace_policies.get(namespace, NO_POLICIES))
        if (cause := _refusal(broker.take())) is not None:
            raise LogError(f"{source}: {place}: {cause}")
    if told == (None, None, None):
        raise LogError(f"{source}: it has no settings of a broker, and says nothing of {base or namespace}")
    own = next((broker.policies(name)[1] for name in broker.topic_names()), told.own)
    return told._replace(own=own)


def _decoded(source: str | Path, place: str, value: bytes) -> Decoded:
    try:
        return decode(value)
    except MalformedCommand as error:
        raise LogError(f"{source}: {place}: {error}") from None


def _read(source: str | Path | pa.Table, log: "_Log") -> PolicyFile:
    """The commands, and where each stands."""
    if isinstance(source, pa.Table):
        return _of_log(source, [f"row {row}" for row in range(len(source))])
    read = policy_sources(source)
    of = dict[str, Path]()
    for about, path in read:
        if about is not None:
            name = about if is_namespace_name(about) else full_topic(about)
            if (before := of.setdefault(name, path)) is not path:
                raise LogError(f"{before} and {path}: each has all policies of {name}, leave out one of them")
    parts = [_read_file(path, about, log) for about, path in read]
    if len(parts) == 1:
        return parts[0]
    return PolicyFile(
        pa.concat_tables([part.commands.select(LOGICAL.names) for part in parts]),
        [f"{path} {place}" for (_, path), part in zip(read, parts, strict=True) for place in part.places],
        [whole for part in parts for whole in part.whole],
        [],
    )


def _read_file(path: Path, about: str | None, log: "_Log") -> PolicyFile:
    if not is_log(path):
        return read_policy_file(path, about, log.namespaces, log.topics)
    if about is not None:
        raise LogError(f"{path} is a log of commands, which say what they are about: leave out {about}=")
    table, numbers = read_log(path), line_numbers(path)
    if numbers is None:
        return _of_log(table, [f"row {row}" for row in range(len(table))])
    return _of_log(table, [f"line {line}" for line in numbers])


def _of_log(table: pa.Table, places: list[str]) -> PolicyFile:
    return PolicyFile(table, places, [False] * len(places), [])


class _Log(NamedTuple):
    """What a log has that policies can be about."""

    topics: set[str]
    namespaces: set[str]
    partitions: dict[str, list[str]]
    """By partitioned topic those of its partitions that the log has."""

    @classmethod
    def of(cls, records: pa.Table) -> Self:
        """What the records have."""
        topics: set[str] = set(records["topic"].unique().drop_null().to_pylist())
        partitions = defaultdict[str, list[str]](list)
        for topic in sorted(topics):
            if (whole := base_of(topic)) != topic:
                partitions[whole].append(topic)
        return cls(topics, {namespace_of(topic) for topic in topics}, partitions)


def _on_partitions(
    topic: str | None, command: Admin | BrokerConfig, log: _Log
) -> Iterator[tuple[str | None, Admin | BrokerConfig]]:
    """A command, and the same on each partition of the partitioned topic that it is about. That topic itself need not be in the log: clients
    ask about it, or not."""
    parts = log.partitions.get(topic or "", []) if isinstance(command, Admin) else []
    if not parts or topic in log.topics:
        yield topic, command
    if isinstance(command, Admin) and topic == admin_requests.topic_of(command.path):
        for part in parts:
            yield part, msgspec.structs.replace(command, path=admin_requests.path_on(part, command.path))


def _mistakes(policy: PolicyCommand, log: _Log) -> Iterator[str]:
    """What is wrong with a policy, other than what the broker refuses."""
    if isinstance(policy.command, BrokerConfig):
        yield from _bad_settings(policy)
        return
    command, path = policy.command, policy.command.path
    topic, namespace = admin_requests.topic_of(path), namespaces.call_of(path)
    if command.method == "GET":
        yield "GET asks and sets nothing: remove it"
    elif topic is not None and policy.topic is None:
        yield f'the command is about a topic, but its record has none: add "topic": "{topic}"'
    elif policy.topic is not None and policy.topic not in log.topics:
        yield f"the log has no records of {_unknown('the topic', policy.topic, log.topics)}"
    elif namespace is not None and namespace[0] not in log.namespaces:
        yield f"the log has no topic in {_unknown('the namespace', namespace[0], log.namespaces)}"
    elif namespace is None and topic is None:
        yield f"{command.method} {path} sets no policy of a topic or a namespace"
    elif (
        call := admin_requests.call_of(command)[1:] if namespace is None else namespace[1]
    ) in KEPT_WITHOUT_EFFECT:
        yield f"Magnetar keeps {call} without acting on it, so it can't change the result: remove it"
    elif (namespace is not None and call and policy_of(call, path) is None) or (
        topic is not None and not admin_requests.creates_topic(command)
    ):
        yield _no_policy(call)
    elif policy_of(call, path) is not None and (fields := unknown_fields(call, command.body)):
        yield f"unknown field `{fields[0]}`, which a broker ignores: it has no effect"


def _no_policy(call: str) -> str:
    known = sorted({*POLICY_CALLS, "backlogQuota"} - KEPT_WITHOUT_EFFECT)
    near = get_close_matches(call.partition("/")[0], [*known, *namespace_policies.NAMES], 1)
    return f"{call or 'the call'} is not a policy: " + (
        f"perhaps {near[0]} is meant" if near else f"policies are {', '.join(known)}"
    )


_COMPARED = 10_000
"""The most names among which the one that is most like another is looked for: that takes 10 µs each."""


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    """What the log doesn't have, and what it has that is most like it."""
    names = sorted(known) if len(known) <= _COMPARED else []
    near = get_close_matches(name, names, 1) or ([min(known)] if known else [])
    return f"{what} {name}" + (f": it has {near[0]}" if near else "")


def _bad_settings(policy: PolicyCommand) -> Iterator[str]:
    assert isinstance(policy.command, BrokerConfig)
    settings = policy.command.settings
    if not settings and "profile" not in policy.fields:
        yield "the command gives neither a profile nor settings"
    for name, value in settings.items():
        try:
            configuration(policy.command.profile, {name: value})
        except BadSetting as error:
            near = None if is_known(name) else nearest_setting(name)
            yield f"{error}" + (f" (perhaps {near})" if near else "")


def _repeats(policy: PolicyCommand, earlier: dict[Any, PolicyCommand]) -> Iterator[str]:
    """What `policy` sets and an earlier one set, too. Adds to `earlier`: setting → who sets it."""
    keys: dict[Any, str]
    if isinstance(policy.command, Admin):
        if policy.command.method == "GET":
            return
        keys = keys_of(policy.topic, policy.command)
    else:
        keys = {("setting", name): name for name in policy.command.settings}
        keys |= {("profile",): "profile"} if "profile" in policy.fields else {}
    for key, what in keys.items():
        if (before := earlier.setdefault(key, policy)) is not policy:
            yield f"{what}: {before.place} sets this already, remove one of them"


def _has_effect(policy: PolicyCommand) -> bool:
    """Whether a policy is any but settings that have no effect here."""
    return (
        isinstance(policy.command, Admin)
        or "profile" in policy.fields
        or not all(map(is_without_effect, policy.command.settings))
    )


def _refusals(records: pa.Table, pins: list[PolicyCommand]) -> dict[int, str]:
    """Why the broker would refuse a policy, by its index in `pins`. Each partition's commands are folded as in a replay."""
    found: dict[int, str] = {}
    if not pins or not len(records):
        return found
    configuring = [number for number, pin in enumerate(pins) if isinstance(pin.command, BrokerConfig)]
    seen = set()
    for front in fronts(records, pins).values():
        key = tuple((pin, to_binary(command)) for pin, _, command in front)
        if key in seen:
            continue
        seen.add(key)
        broker = Broker(0, NoEntries())
        for offset, (pin, topic, command) in enumerate(front):
            if isinstance(command, BrokerConfig):  # the log may create its namespaces later
                settings = command.settings | {"namespacesMustExist": False}
                command = msgspec.structs.replace(command, settings=settings)
            broker.apply(offset, 0, topic, command, b"")
            if (cause := _refusal(broker.take())) is None:
                continue
            if pin is not None:
                found.setdefault(pin, cause)
            elif configuring:
                found.setdefault(configuring[0], f"together with the log's own settings: {cause}")
    return found


def _refusal(rows: list[Row]) -> str | None:
    for row in rows:
        match row.effect:
            case Quarantined(cause=cause):
                return cause
            case AdminResponse(fields=AdminResponseFields(response={"reason": reason})):
                call = row.effect.cause
                return str(reason) + f" ({call})" * (call not in reason)
    return None
