"""Policies over a log: they come first, and what the log says of the same settings is left out.

The policies are *pinned*: they come before the log's first record, with its timestamp, and commands in the log that change the same
setting are left out. The pinned commands take the first offsets. The log's own records move up by one number, `Pinned.shift`, which is
the same in all partitions: subtract it to compare two results row by row.

A PUT of a namespace sets all of its policies. A pinned one comes before the other calls on the namespace, and one in the log gets the pinned
policies into its body. Those of a topic or a namespace hold whenever it exists (`Admin.lasting`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.commands import (
    Admin,
    AnyCommand,
    BrokerConfig,
    Line,
    Mirror,
    command_in,
    decode_or_refuse,
    to_binary,
)
from schemas.records import RECORD
from streaming.broker import admin_requests
from streaming.broker.admin import dynamic_settings, namespace_policies, namespaces
from streaming.broker.config import BadSetting, configuration
from streaming.broker.policies.admin_calls import policy_of
from streaming.log.spool import pieces
from streaming.log.table import replaced


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


class Pinned(NamedTuple):
    """A log under other policies (columns `RECORD`). `shift`: how much higher offsets are than in the log itself."""

    records: pa.Table
    shift: int


def pin(records: pa.Table, policies: list[PolicyCommand]) -> Pinned:
    """`records` (columns `RECORD`, offsets rising) under `policies`.

    * An ADMIN command goes to the partition of its topic, or, without a topic, to every partition. Commands in the log that
      set the same policy (of the same topic or namespace) are left out.
    * The settings of a BROKER_CONFIG (and its profile, if it has one) override those of every BROKER_CONFIG in the log. Calls that
      change one of them are left out.
    * The topics of a mirrored cluster do not follow it any more (shadowTopicFollowsSource).
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
    commands = {row: to_binary(command) for row, command in overridden.reconfigured.items()}
    keep = np.ones(len(records), bool)
    keep[overridden.dropped] = False
    kept = replaced(records, "value", commands).filter(pa.array(keep))
    moved = kept.set_column(
        RECORD.get_field_index("offset"), RECORD.field("offset"), pc.add(kept["offset"], shift)
    )
    return Pinned(pa.concat_tables([pa.Table.from_pylist(rows, RECORD), moved]), shift)


class PartitionPins(NamedTuple):
    """What policies do to the log of one ingress partition: the commands that come first (topic, command), the offsets of the
    records that are left out, and other commands by offset. They can be pickled, since Spark sends them to its tasks."""

    front: Sequence[tuple[str | None, AnyCommand]] = ()
    dropped: frozenset[int] = frozenset()
    replaced: Mapping[int, BrokerConfig | Admin] = {}

    def moved(self, shift: int) -> "PartitionPins":
        """For a log whose offsets are higher by `shift`."""
        return PartitionPins(
            self.front,
            frozenset(offset + shift for offset in self.dropped),
            {offset + shift: command for offset, command in self.replaced.items()},
        )


def pins(
    records: pa.Table, policies: list[PolicyCommand], rows: Sequence[int] | None = None
) -> dict[int, PartitionPins]:
    """What `pin` would do to each ingress partition of `records`. `rows`: `may_be_overridden` of them, if that is known."""
    overridden = _overridden(records, policies, rows)
    front = _front(records, policies, overridden)
    dropped: dict[int, set[int]] = defaultdict(set)
    replaced: dict[int, dict[int, BrokerConfig | Admin]] = defaultdict(dict)
    for row in overridden.dropped:
        dropped[records["partition"][row].as_py()].add(records["offset"][row].as_py())
    for row, command in overridden.reconfigured.items():
        replaced[records["partition"][row].as_py()][records["offset"][row].as_py()] = command
    return {
        owner: PartitionPins(
            [(topic, command) for _, topic, command in commands], frozenset(dropped[owner]), replaced[owner]
        )
        for owner, commands in front.items()
    }


def pins_of_piece(
    records: pa.Table,
    policies: list[PolicyCommand],
    owned: Callable[[str], bool],
    *,
    begins: bool,
    mirrored: bool,
    rows: Sequence[int] | None = None,
) -> PartitionPins:
    """What policies do to some records of one ingress partition, which are its first (`begins`), or follow others: then nothing comes before
    them. `owned`: whether a topic belongs into the partition. `mirrored`: the records are a mirror's. `rows`: see `pins`."""
    overridden = _overridden(records, policies, rows, begins=begins, mirrored=mirrored)
    offsets = records["offset"]
    front = front_of(policies, owned, next(iter(overridden.configs.values()), None)) if begins else []
    return PartitionPins(
        front,
        frozenset(offsets.take(pa.array(overridden.dropped, pa.int64())).to_pylist()),
        {offsets[row].as_py(): command for row, command in overridden.reconfigured.items()},
    )


def front_of(
    policies: list[PolicyCommand], owned: Callable[[str], bool], config: BrokerConfig | None
) -> list[tuple[str | None, AnyCommand]]:
    """The pinned commands (topic, command) of one ingress partition. `config`: with which it begins, if the policies say anything of it."""
    return [(topic, command) for _, topic, command in _pinned(_calls(policies), owned, config)]


def _pinned(
    calls: list[tuple[int, str | None, Admin]], owned: Callable[[str], bool], config: BrokerConfig | None
) -> list[tuple[int | None, str | None, Admin | BrokerConfig]]:
    """See `front_of`, with the index of the policy (None: the configuration)."""
    # A partition's configuration must stay its first command.
    first = [] if config is None else [(None, None, config)]
    return [*first, *(each for each in calls if each[1] is None or owned(each[1]))]


def config_over(
    policies: list[PolicyCommand], command: BrokerConfig, *, mirrored: bool
) -> BrokerConfig | None:
    """A configuration with that of the policies applied. None: they say nothing of it. `mirrored`: for a mirror's records."""
    given = _settings(policies, mirrored=mirrored)
    return None if given is None else _over(command, given)


def of_baseline(records: pa.Table) -> dict[int, PartitionPins]:
    """What is done to each ingress partition of a mirror's log before other policies are compared with it; of another log: nothing.

    Its topics do not follow their source there, either. Or else each message whose fate a mirror saw a moment later would be a difference.
    """
    return pins(records, []) if is_mirrored(records) else {}


class _Overridden(NamedTuple):
    """What policies do to a log: the rows that are left out (`dropped`), and by row the commands in place of others (`reconfigured`):
    configurations, and PUTs of namespaces, each of which sets all policies of one. `starts` has the first row of each partition; `configs`,
    by that row, the configuration with which the partition begins: the log's own or the default, with that of the policies applied."""

    dropped: list[int]
    reconfigured: dict[int, BrokerConfig | Admin]
    starts: dict[int, int]
    configs: dict[int, BrokerConfig]


def fronts(
    records: pa.Table, policies: list[PolicyCommand]
) -> dict[int, list[tuple[int | None, str | None, Admin | BrokerConfig]]]:
    """The pinned commands of each ingress partition: the index of the policy (None: the configuration), topic, command."""
    return _front(records, policies, _overridden(records, policies))


def _front(
    records: pa.Table, policies: list[PolicyCommand], overridden: _Overridden
) -> dict[int, list[tuple[int | None, str | None, Admin | BrokerConfig]]]:
    """The pinned commands of each partition: the index of the policy (None: the configuration), topic, command."""
    of_topic = _partitions(records, {policy.topic for policy in policies if policy.topic is not None})
    calls = _calls(policies)
    return {
        owner: _pinned(calls, lambda topic: owner in of_topic[topic], overridden.configs.get(start))  # noqa: B023 (it is called at once)
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
            lasting = _key(topic, command)[1] != command.path
            others.append((number, topic, msgspec.structs.replace(command, lasting=lasting)))
        else:
            first, before = puts.get(created, (number, command))
            unset: dict[str, Any] = dict.fromkeys(namespace_policies.POLICY_NAMES) if whole else {}
            body = unset | _body(before) | _body(command)
            puts[created] = first, msgspec.structs.replace(command, body=body, lasting=True)
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


def may_be_overridden(records: pa.Table) -> list[int]:
    """The rows of commands that policies may override, and of a few others. It looks at all bytes of all values."""
    return [*mentioning(records, b"ADMIN", b"BROKER_CONFIG")]


def _overridden(
    records: pa.Table,
    policies: list[PolicyCommand],
    rows: Sequence[int] | None = None,
    *,
    begins: bool = True,
    mirrored: bool | None = None,
) -> _Overridden:
    """`rows`: see `pins`. `begins`: the records are the first of their partitions. `mirrored`: they are a mirror's; None: they tell."""
    starts = _starts(records) if begins else {}
    if mirrored is None:
        mirrored = policies != [_NOTHING] and is_mirrored(records)
    first_rows, config = set(starts.values()), _settings(policies, mirrored=mirrored)
    calls = [each for each in policies if isinstance(each.command, Admin)]
    keys = {key for each in calls for key in keys_of(each.topic, each.command)}  # type: ignore[arg-type]
    if config is not None:
        keys |= {_key_of_setting(name) for name in config["settings"]}
    whole = {_about(each.topic, each.command) for each in calls if each.whole}  # type: ignore[arg-type]
    dropped: list[int] = []
    configs = {start: _over(BrokerConfig(), config) for start in first_rows} if config is not None else {}
    reconfigured: dict[int, BrokerConfig | Admin] = {}
    for row in may_be_overridden(records) if rows is None else rows:
        command = decode_or_refuse(records["value"][row].as_py())
        topic = records["topic"][row].as_py()
        if isinstance(command, Line):
            if command.differs_from(topic, records["timestamp"][row].as_py()) is not None:
                continue  # it is quarantined under other policies, too
            command = command.command
        if isinstance(command, Admin):
            if (created := created_by(topic, command)) is not None:
                if (other := _under(command, created, calls, whole=created in whole)) != command:
                    reconfigured[row] = other
            elif command.method != "GET":
                key = _key(topic, command)
                is_policy = key[1] != command.path
                if key in keys or (is_policy and _about(topic, command) in whole):
                    dropped.append(row)
        elif isinstance(command, BrokerConfig):
            if not is_accepted(command):
                continue  # it is quarantined under other policies, too
            if row in first_rows:
                configs[row] = _over(command, config)
                dropped.append(row)
            elif config is not None:
                reconfigured[row] = _over(command, config)
    return _Overridden(dropped, reconfigured, starts, configs)


def _starts(records: pa.Table) -> dict[int, int]:
    """The first row of each partition."""
    found, first = dict[int, int](), 0
    for piece in pieces(records.select(["partition"])):
        numbers, rows = np.unique(piece["partition"].to_numpy(), return_index=True)
        found = {
            number: first + row for number, row in zip(numbers.tolist(), rows.tolist(), strict=True)
        } | found
        first += len(piece)
    return dict(sorted(found.items()))


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


def is_mirrored(records: pa.Table) -> bool:
    """Whether a log (columns `RECORD`) is a mirror's."""
    return first_of_mirror(records) is not None


def first_of_mirror(records: pa.Table) -> int | None:
    """The row of the first MIRROR; None: the records are not a mirror's."""
    for row in mentioning(records, b"MIRROR"):
        if isinstance(command_in(decode_or_refuse(records["value"][row].as_py())), Mirror):
            return row
    return None


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


def keys_of(topic: str | None, command: Admin) -> dict[tuple[str | None, str], str]:
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
    if topic is None and (setting := dynamic_settings.setting_of(command)) is not None:
        return _key_of_setting(setting)
    return topic, path


def _key_of_setting(name: str) -> tuple[None, str]:
    """What sets a setting of the broker, see `_key`: a BROKER_CONFIG, or a call."""
    return None, f"broker {name}"


def _settings(policies: list[PolicyCommand], *, mirrored: bool) -> dict[str, Any] | None:
    """The settings and, if given, the profile of all BROKER_CONFIG commands, combined. Defaults do not count as given.

    Under other policies, a mirrored topic does not follow its source, whose broker had those of the log.
    """
    given = [policy.fields for policy in policies if isinstance(policy.command, BrokerConfig)]
    if not given and not mirrored:
        return None
    merged: dict[str, Any] = {"settings": {"shadowTopicFollowsSource": False} if mirrored else {}}
    for fields in given:
        merged["settings"] |= fields.get("settings", {})
        if "profile" in fields:
            merged["profile"] = fields["profile"]
    return merged


def fields_of(value: bytes) -> dict[str, Any]:
    """The fields that a command gives; defaults are not among them."""
    read = msgspec.json.decode if value.lstrip()[:1] == b"{" else msgspec.msgpack.decode
    fields: dict[str, Any] = read(value)
    return fields


def _over(command: BrokerConfig, config: dict[str, Any] | None) -> BrokerConfig:
    if config is None:
        return command
    wished = msgspec.convert({"command": "BROKER_CONFIG"} | config, BrokerConfig)
    profile = wished.profile if "profile" in config else command.profile
    return msgspec.structs.replace(command, profile=profile, settings=command.settings | wished.settings)


def mentioning(records: pa.Table, *words: bytes) -> Iterator[int]:
    """The rows whose values have one of the words in them."""
    first = 0
    for piece in pieces(records.select(["value"])):
        found = [pc.match_substring(piece["value"], word).to_numpy() for word in words]
        yield from (first + np.flatnonzero(np.logical_or.reduce(found))).tolist()
        first += len(piece)


def _partitions(records: pa.Table, topics: set[str]) -> dict[str, set[int]]:
    """The partitions that have records of each topic; none for a topic that is not in the log."""
    found: dict[str, set[int]] = defaultdict(set)
    columns = ["topic", "partition"]
    for pair in records.select(columns).group_by(columns).aggregate([]).to_pylist() if topics else ():
        if pair["topic"] in topics:
            found[pair["topic"]].add(pair["partition"])
    return found
