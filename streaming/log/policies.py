"""Other policies for a recorded log: what would this TTL have done?

The policies are themselves a small log of ADMIN and BROKER_CONFIG commands. They are *pinned*: they come before the log's
first record, with its timestamp, and commands in the log that change the same setting are left out.

The pinned commands take the first offsets. The log's own records move up by one number, `Pinned.shift`, which is the same
in all partitions: subtract it to compare two results row by row.

A policy that can't take effect would leave the result unchanged, as if that were the answer. So `read_policies` checks all of
them first. What the broker would refuse it asks the broker, by folding the pinned commands as a replay will.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import (
    Admin,
    AnyCommand,
    BrokerConfig,
    Decoded,
    MalformedCommand,
    Refused,
    decode,
    to_binary,
)
from schemas.effect_fields import AdminResponseFields
from schemas.effects import AdminResponse, Quarantined, Row
from schemas.records import RECORD
from streaming.broker import admin_requests
from streaming.broker.admin import namespace_policies, namespaces
from streaming.broker.broker import Broker
from streaming.broker.config import BadSetting, configuration, is_known, is_without_effect
from streaming.broker.context import namespace_of
from streaming.broker.entries import NoEntries
from streaming.broker.policies.admin_calls import POLICY_CALLS, policy_of
from streaming.broker.policies.kept import KEPT
from streaming.log.broker_settings import nearest_setting, sort_out
from streaming.log.files import line_numbers, read_log
from streaming.log.policy_files import PolicyFile, is_log, read_policy_file
from streaming.log.policy_sources import policy_sources
from streaming.log.table import LOGICAL, LogError


class PolicyCommand(NamedTuple):
    """A command that sets a policy, and where it stands: a line of a file, or a row of a table.

    `fields` are those that the command gives; defaults are not among them. `whole`: its namespace or topic has no other policies
    than those that such commands set.
    """

    place: str
    topic: str | None
    command: Admin | BrokerConfig
    fields: dict[str, Any]
    whole: bool = False


class PolicyError(LogError):
    """Some policies can't take effect. `problems` has one text per mistake, which begins with its place."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        mistakes = f"{len(problems)} mistakes" if len(problems) > 1 else "a mistake"
        super().__init__("\n  ".join([f"{name} has {mistakes}, so nothing was replayed:", *problems]))
        self.problems = tuple(problems)


class Pinned(NamedTuple):
    """A log under other policies (columns `RECORD`). `shift`: how much higher offsets are than in the log itself."""

    records: pa.Table
    shift: int


# ---- reading and checking


def read_policies(
    source: str | Path | pa.Table,
    records: pa.Table,
    judge: Callable[[Sequence[str | None], Sequence[bytes]], Iterable[Decoded]],
) -> list[PolicyCommand]:
    """The policies in `source` for the log `records` (columns `RECORD`): what `policy_sources` or `read_log` take, or a log's table.

    `judge` decodes them, see `streaming.quality.gate`. Raises `PolicyError` with all mistakes: a record that is not a command
    or sets nothing, a topic or namespace that the log doesn't have, a policy that is set twice, and whatever the broker
    refuses. Raises `LogError` and `FileNotFoundError` if `source` can't be read.
    """
    name = "the table of policies" if isinstance(source, pa.Table) else str(source)
    known = _Log(records)
    table, places, whole, _ = _read(source, known)
    topics, values = table["topic"].to_pylist(), table["value"].to_pylist()
    problems: list[tuple[int, str]] = []
    earlier: dict[Any, str] = {}
    policies: dict[int, PolicyCommand] = {}
    for row, (place, topic, value, command) in enumerate(
        zip(places, topics, values, judge(topics, values), strict=True)
    ):
        if isinstance(command, Admin | BrokerConfig):
            policy = PolicyCommand(place, topic, command, _fields(value), whole[row])
            found = list(_mistakes(policy, known))
            if not found:
                policies[row] = policy
            found += _repeats(policy, earlier)
        else:
            found = [command.cause if isinstance(command, Refused) else _OTHER]
        problems += [(row, f"{place}: {problem}") for problem in found]
    rows, pins = list(policies), list(policies.values())
    problems += [(rows[i], f"{pins[i].place}: {text}") for i, text in _refusals(records, pins).items()]
    if not len(table):
        problems.append((0, "it has no policies: write one ADMIN or BROKER_CONFIG command per line"))
    if problems:
        raise PolicyError(name, [text for _, text in sorted(problems)])
    return pins


_OTHER = "neither an ADMIN nor a BROKER_CONFIG command: only these set policies"


def policy_notes(source: str | Path) -> list[str]:
    """What to tell about the files that `read_policies` reads: how many settings and policies are applied, how many have no effect, and which
    can't be applied. Raises as `read_policies` does for files that can't be read."""
    notes: list[str] = []
    for about, path in policy_sources(source):
        if is_log(path):
            settings: dict[str, Any] = {}
            for value in read_log(path)["value"].to_pylist():
                with suppress(MalformedCommand):
                    command = decode(value)
                    settings |= command.settings if isinstance(command, BrokerConfig) else {}
            found = [sort_out(settings, "4.0").counted] if any(map(is_without_effect, settings)) else []
        else:
            found = read_policy_file(path, about, [_ANY]).notes
        notes += [f"{path}: {note}" for note in found]
    return notes


_ANY = "public/default"
"""Stands for the namespace that a file is about."""


def _read(source: str | Path | pa.Table, log: "_Log") -> PolicyFile:
    """The commands, and where each stands."""
    if isinstance(source, pa.Table):
        return _of_log(source, [f"row {row}" for row in range(len(source))])
    read = policy_sources(source)
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


class _Log:
    """What a log has that policies can be about."""

    def __init__(self, records: pa.Table) -> None:
        self.topics: set[str] = set(records["topic"].unique().drop_null().to_pylist())
        self.namespaces = {namespace_of(topic) for topic in self.topics}


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
        yield _no_topic(policy.topic, log.topics)
    elif namespace is not None and namespace[0] not in log.namespaces:
        yield f"the log has no topic in {_unknown('the namespace', namespace[0], log.namespaces)}"
    elif namespace is None and topic is None:
        yield f"{command.method} {path} sets no policy of a topic or a namespace"
    elif (call := admin_requests.call_of(command)[1:] if namespace is None else namespace[1]) in KEPT:
        yield f"Magnetar keeps {call} without acting on it, so it can't change the result: remove it"
    elif (namespace is not None and call and policy_of(call, path) is None) or (
        topic is not None and not admin_requests.creates_topic(command)
    ):
        yield _no_policy(call)


def _no_topic(topic: str, topics: set[str]) -> str:
    parts = sorted(each for each in topics if each.startswith(f"{topic}-partition-"))
    if parts:
        more = f" to {parts[-1]}" if len(parts) > 1 else ""
        return f"the log has {topic} as a partitioned topic: set the policy on each of {parts[0]}{more}"
    return f"the log has no records of {_unknown('the topic', topic, topics)}"


def _no_policy(call: str) -> str:
    known = sorted({*POLICY_CALLS, "backlogQuota"} - set(KEPT))
    near = get_close_matches(call.partition("/")[0], [*known, *namespace_policies.NAMES], 1)
    return f"{call or 'the call'} is not a policy: " + (
        f"perhaps {near[0]} is meant" if near else f"policies are {', '.join(known)}"
    )


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    """What the log doesn't have, and what it has that is most like it."""
    near = get_close_matches(name, sorted(known), 1) or sorted(known)[:1]
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


def _repeats(policy: PolicyCommand, earlier: dict[Any, str]) -> Iterator[str]:
    """What `policy` sets and an earlier one set, too. Adds to `earlier`: setting → place."""
    keys: dict[Any, str]
    if isinstance(policy.command, Admin):
        if policy.command.method == "GET":
            return
        keys = _keys(policy.topic, policy.command)
    else:
        keys = {("setting", name): name for name in policy.command.settings}
        keys |= {("profile",): "profile"} if "profile" in policy.fields else {}
    for key, what in keys.items():
        if (before := earlier.setdefault(key, policy.place)) != policy.place:
            yield f"{what}: {before} sets this already, remove one of them"


def _refusals(records: pa.Table, pins: list[PolicyCommand]) -> dict[int, str]:
    """Why the broker would refuse a policy, by its index in `pins`. Each partition's commands are folded as in a replay."""
    found: dict[int, str] = {}
    if not pins or not len(records):
        return found
    configuring = [number for number, pin in enumerate(pins) if isinstance(pin.command, BrokerConfig)]
    seen = set()
    for front in _front(records, pins, _overridden(records, pins)).values():
        key = tuple((pin, to_binary(command)) for pin, _, command in front)
        if key in seen:
            continue
        seen.add(key)
        broker = Broker(0, NoEntries())
        for offset, (pin, topic, command) in enumerate(front):
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


# ---- pinning


def pin(records: pa.Table, policies: list[PolicyCommand]) -> Pinned:
    """`records` (columns `RECORD`, offsets rising) under `policies`.

    * An ADMIN command goes to the partition of its topic, or, without a topic, to every partition. Commands in the log that
      set the same policy (of the same topic or namespace) are left out.
    * The settings of a BROKER_CONFIG (and its profile, if it has one) override those of every BROKER_CONFIG in the log.
    """
    if not policies or not len(records):
        return Pinned(records, 0)
    overridden = _overridden(records, policies)
    front = _front(records, policies, overridden)
    shift = max(len(commands) for commands in front.values())
    rows = [
        {
            "partition": owner,
            "offset": records["offset"][start].as_py() + place,
            "timestamp": records["timestamp"][start].as_py(),
            "topic": topic,
            "value": to_binary(command),
        }
        for owner, start in overridden.starts.items()
        for place, (_, topic, command) in enumerate(front[owner])
    ]
    kept = records
    if overridden.reconfigured:
        values = records["value"].to_pylist()
        for row, command in overridden.reconfigured.items():
            values[row] = to_binary(command)
        column = RECORD.get_field_index("value")
        kept = kept.set_column(column, RECORD.field("value"), pa.array(values, pa.binary()))
    kept = kept.filter(pa.array(overridden.keep))
    moved = kept.set_column(
        RECORD.get_field_index("offset"), RECORD.field("offset"), pc.add(kept["offset"], shift)
    )
    return Pinned(pa.concat_tables([pa.Table.from_pylist(rows, RECORD), moved]), shift)


class PartitionPins(NamedTuple):
    """What policies do to the log of one ingress partition: the commands that come first (topic, command), the offsets of the
    records that are left out, and other commands by offset."""

    front: Sequence[tuple[str | None, AnyCommand]] = ()
    dropped: frozenset[int] = frozenset()
    replaced: Mapping[int, BrokerConfig | Admin] = MappingProxyType({})

    def moved(self, shift: int) -> "PartitionPins":
        """For a log whose offsets are higher by `shift`."""
        return PartitionPins(
            self.front,
            frozenset(offset + shift for offset in self.dropped),
            {offset + shift: command for offset, command in self.replaced.items()},
        )


def pins(records: pa.Table, policies: list[PolicyCommand]) -> dict[int, PartitionPins]:
    """What `pin` would do to each ingress partition of `records`."""
    overridden = _overridden(records, policies)
    front = _front(records, policies, overridden)
    dropped: dict[int, set[int]] = defaultdict(set)
    replaced: dict[int, dict[int, BrokerConfig | Admin]] = defaultdict(dict)
    for row in np.flatnonzero(~overridden.keep).tolist():
        dropped[records["partition"][row].as_py()].add(records["offset"][row].as_py())
    for row, command in overridden.reconfigured.items():
        replaced[records["partition"][row].as_py()][records["offset"][row].as_py()] = command
    return {
        owner: PartitionPins(
            [(topic, command) for _, topic, command in commands], frozenset(dropped[owner]), replaced[owner]
        )
        for owner, commands in front.items()
    }


class _Overridden(NamedTuple):
    """What policies do to a log: the rows to `keep`, and by row the commands in place of others (`reconfigured`): configurations, and
    PUTs of namespaces, each of which sets all policies of one. `starts` has the
    first row of each partition; `configs`, by that row, the configuration with which the partition begins: the log's own or
    the default, with that of the policies applied."""

    keep: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    reconfigured: dict[int, BrokerConfig | Admin]
    starts: dict[int, int]
    configs: dict[int, BrokerConfig]


def _front(
    records: pa.Table, policies: list[PolicyCommand], overridden: _Overridden
) -> dict[int, list[tuple[int | None, str | None, Admin | BrokerConfig]]]:
    """The pinned commands of each partition: the index of the policy (None: the configuration), topic, command."""
    of_topic = _partitions(records, {policy.topic for policy in policies if policy.topic is not None})
    calls = _calls(policies)
    return {
        owner: [
            # A partition's configuration must stay its first command.
            *((None, None, overridden.configs[start]) for _ in range(start in overridden.configs)),
            *(
                (number, topic, command)
                for number, topic, command in calls
                if topic is None or owner in of_topic[topic]
            ),
        ]
        for owner, start in overridden.starts.items()
    }


def _calls(policies: list[PolicyCommand]) -> list[tuple[int, str | None, Admin]]:
    """The calls that set policies, by their index. One PUT of a namespace stands for all of it, before the other calls on it."""
    puts: dict[str, tuple[int, Admin]] = {}
    others: list[tuple[int, str | None, Admin]] = []
    for number, (_, topic, command, _, whole) in enumerate(policies):
        if not isinstance(command, Admin):
            continue
        if (created := created_by(topic, command)) is None:
            others.append((number, topic, command))
        else:
            first, before = puts.get(created, (number, command))
            unset: dict[str, Any] = dict.fromkeys(namespace_policies.POLICY_NAMES) if whole else {}
            body = unset | _body(before) | _body(command)
            puts[created] = first, msgspec.structs.replace(command, body=body)
    return [*((number, None, command) for number, command in puts.values()), *others]


def _body(command: Admin) -> dict[str, Any]:
    assert isinstance(command.body, dict)
    return command.body


def created_by(topic: str | None, command: Admin) -> str | None:
    """The namespace that a call creates with policies, which sets all of them; None: it does not."""
    if command.method != "PUT" or topic is not None or not isinstance(command.body, dict):
        return None
    about = namespaces.call_of(command.path)
    return about[0] if about is not None and not about[1] else None


def _overridden(records: pa.Table, policies: list[PolicyCommand]) -> _Overridden:
    partition = records["partition"].to_numpy()
    starts = {int(p): int(np.argmax(partition == p)) for p in np.unique(partition)}
    first_rows, config = set(starts.values()), _config(policies)
    calls = [each for each in policies if isinstance(each.command, Admin)]
    keys = {key for each in calls for key in _keys(each.topic, each.command)}  # type: ignore[arg-type]
    whole = {_about(each.topic, each.command) for each in calls if each.whole}  # type: ignore[arg-type]
    keep = np.ones(len(records), bool)
    configs = {start: _over(BrokerConfig(), config) for start in first_rows} if config is not None else {}
    reconfigured: dict[int, BrokerConfig | Admin] = {}
    mentioned = _mentions(records["value"], b"ADMIN") | _mentions(records["value"], b"BROKER_CONFIG")
    for row in np.flatnonzero(mentioned).tolist():
        value = records["value"][row].as_py()
        try:
            command = decode(value)
        except MalformedCommand:
            continue
        if isinstance(command, Admin):
            topic = records["topic"][row].as_py()
            if (created := created_by(topic, command)) is not None:
                if (other := _under(command, created, calls, whole=created in whole)) != command:
                    reconfigured[row] = other
            elif command.method != "GET":
                key = _key(topic, command)
                is_policy = key[1] != command.path
                keep[row] = key not in keys and not (is_policy and _about(topic, command) in whole)
        elif isinstance(command, BrokerConfig):
            if not is_accepted(command):
                continue  # it is quarantined under other policies, too
            if row in first_rows:
                configs[row], keep[row] = _over(command, config), False
            elif config is not None:
                reconfigured[row] = _over(command, config)
    return _Overridden(keep, reconfigured, starts, configs)


def _about(topic: str | None, command: Admin) -> str | None:
    """The topic or the namespace that a call is about."""
    if topic is not None:
        return topic
    about = namespaces.call_of(command.path)
    return None if about is None else about[0]


def _under(command: Admin, namespace: str, policies: list[PolicyCommand], *, whole: bool) -> Admin:
    """A call that creates a namespace under policies for it, which are all that it has or some of them (`whole`)."""
    body = _body(command)
    if whole:
        body = {name: value for name, value in body.items() if not namespace_policies.policies_of(name)}
    for _, topic, other, _, _ in policies:
        if not isinstance(other, Admin) or topic is not None or _about(None, other) != namespace:
            continue
        if created_by(None, other) is not None:
            body = body | _body(other)
        elif (policy := policy_of(namespaces.call_of(other.path)[1], other.path)) is not None:  # type: ignore[index]
            value = None if other.method == "DELETE" else other.body
            body = namespace_policies.overlaid(body, [(policy, value)])
    return msgspec.structs.replace(command, body=body)


_NOTHING = PolicyCommand("", None, BrokerConfig(), {})


def configurations(records: pa.Table) -> Iterator[BrokerConfig]:
    """The configurations that the broker takes from a log (columns `RECORD`), and that of ingress partitions that begin without one."""
    overridden = _overridden(records, [_NOTHING])
    yield from overridden.configs.values()
    yield from (each for each in overridden.reconfigured.values() if isinstance(each, BrokerConfig))


def is_accepted(command: BrokerConfig) -> bool:
    """Whether the broker carries it out. It refuses settings that it does not know, and values that they can't have."""
    try:
        configuration(command.profile, command.settings)
    except BadSetting:
        return False
    return True


def _keys(topic: str | None, command: Admin) -> dict[tuple[str | None, str], str]:
    """What a call sets, see `_key`, and how to name it: several policies, if it creates a namespace."""
    if (created := created_by(topic, command)) is None:
        return {_key(topic, command): command.path}
    return {
        (topic, f"{created} {policy}"): name
        for name in _body(command)
        for policy in namespace_policies.policies_of(name) or (name,)
    }


def _key(topic: str | None, command: Admin) -> tuple[str | None, str]:
    """What a call sets, whichever of its names the policy has, and wherever its value stands."""
    path = command.path
    if topic is not None and admin_requests.topic_of(path) == topic:
        return topic, policy_of(admin_requests.call_of(command)[1:], path) or path
    if topic is None and (about := namespaces.call_of(path)) is not None:
        policy = policy_of(about[1], path)
        return topic, path if policy is None else f"{about[0]} {policy}"
    return topic, path


def _config(policies: list[PolicyCommand]) -> dict[str, Any] | None:
    """The settings and, if given, the profile of all BROKER_CONFIG commands, combined. Defaults do not count as given."""
    given = [policy.fields for policy in policies if isinstance(policy.command, BrokerConfig)]
    if not given:
        return None
    merged: dict[str, Any] = {"settings": {}}
    for fields in given:
        merged["settings"] |= fields.get("settings", {})
        if "profile" in fields:
            merged["profile"] = fields["profile"]
    return merged


def _fields(value: bytes) -> dict[str, Any]:
    read = msgspec.json.decode if value.lstrip()[:1] == b"{" else msgspec.msgpack.decode
    fields: dict[str, Any] = read(value)
    return fields


def _over(command: BrokerConfig, config: dict[str, Any] | None) -> BrokerConfig:
    if config is None:
        return command
    wished = msgspec.convert({"command": "BROKER_CONFIG"} | config, BrokerConfig)
    profile = wished.profile if "profile" in config else command.profile
    return msgspec.structs.replace(command, profile=profile, settings=command.settings | wished.settings)


def _mentions(values: pa.ChunkedArray, word: bytes) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.match_substring(values, word).to_numpy()
    return found


def _partitions(records: pa.Table, topics: set[str]) -> dict[str, set[int]]:
    """The partitions that have records of each topic; none for a topic that is not in the log."""
    found: dict[str, set[int]] = defaultdict(set)
    chosen = records.filter(pc.is_in(records["topic"], pa.array(sorted(topics), pa.string())))
    for pair in (
        chosen.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([]).to_pylist()
    ):
        found[pair["topic"]].add(pair["partition"])
    return found
