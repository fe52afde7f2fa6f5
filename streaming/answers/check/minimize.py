"""The smallest log that still shows something: whole clients are left out first, then single commands.

The log is folded as one ingress partition. What remains is valid: a SEND has its PRODUCER, an ACK its SUBSCRIBE. Positions in
commands follow the entries that they name; an entry that is left out is left out of the commands, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import msgspec
import pyarrow as pa

from schemas import commands as c
from schemas.arguments import checked
from schemas.commands import AnyCommand, MessageIdData, Publish, Refused, command_in, to_binary, to_json
from schemas.effects import KINDS, CursorMoved, Evicted, Expired, Row, SendReceipt, SubscriptionEvent
from schemas.errors import MagnetarError
from schemas.printable import counted
from schemas.undecodable import UNDECODABLE
from sinks.outputs import new_file
from streaming.answers.check.invariants import INVARIANTS, Monitor, Violation
from streaming.answers.check.reduction import reduced
from streaming.answers.check.scenario import full_topic_name
from streaming.answers.check.schedules import World
from streaming.answers.fates import deletes, resets
from streaming.broker.broker import Broker
from streaming.broker.config import PROFILE_OF
from streaming.broker.position import Position, from_wire, from_words
from streaming.log.files import read_lines, read_log
from streaming.log.merge import merge_partitions
from streaming.log.pins import is_accepted
from streaming.quality.gate import judge


class KeepError(MagnetarError, ValueError):
    """What should be kept is not understood, or the log does not show it."""


class NothingSmaller(MagnetarError):
    """It was stopped before it found a smaller log."""


class _Stopped(Exception):
    pass


def _never() -> bool:
    return False


class LogCommand(NamedTuple):
    """A record of a log. `number` is its place in the whole log, which names the entry that it writes. `named`: the entries at
    the positions that it names, by those numbers."""

    number: int
    timestamp: int
    topic: str | None
    command: AnyCommand | Publish
    named: Mapping[Position, int] = MappingProxyType({})


class FoldedLog(NamedTuple):
    """What became of a log. `commands`: as they were folded. `rows` by command. `entries`: the position of each entry by the
    number of the record that wrote it, and by topic. `stop`: asked again and again, see `minimize`."""

    commands: list[LogCommand]
    rows: list[list[Row]]
    broker: Broker
    entries: dict[str, dict[int, Position]]
    stop: Callable[[], bool] = _never

    @property
    def effects(self) -> list[Any]:
        """All effects, in order."""
        return [row.effect for rows in self.rows for row in rows]

    def judged(self) -> tuple[list[Violation], World]:
        """The invariants that the log violates, apart from ``starved``, and the world at its end. A monitor looks at the whole backlog after each
        command. Raises `_Stopped`."""
        monitor, found = Monitor(), list[Violation]()
        broker = Broker(0, monitor)
        for each in self.commands:
            if self.stop():
                raise _Stopped
            broker.apply(broker.offset + 1, each.timestamp, each.topic, each.command, to_binary(each.command))
            found += monitor.observe(each.topic, each.command, broker.take(), broker)
        return found, World.decode(broker.encode(), monitor.encode())


FoldLog = Callable[[str | None], FoldedLog]
"""Folds a log, under another profile if one is given."""


@runtime_checkable
class Keep(Protocol):
    """What a log shows."""

    def shape(self, fold: FoldLog) -> Hashable | None:
        """What of it the log shows, or None. A smaller log must show the same."""
        ...

    def text(self, fold: FoldLog) -> str:
        """It as an argument of `keep_of`, with the positions of the log."""
        ...


class Minimized(msgspec.Struct):
    """The smallest log that was found. `before`, `after`: its numbers of commands. `folded`: how many logs were tried.
    `keep`: what it shows, with its own positions. `complete`: no command of it can be left out, as far as was tried."""

    keep: str
    before: int
    after: int
    folded: int
    lines: list[str]
    complete: bool = True


# ---- what to keep


class Stuck(NamedTuple):
    """Entries wait at the end, a consumer is connected, and it gets none of them now, for the same reasons."""

    topic: str
    subscription: str

    def shape(self, fold: FoldLog) -> Hashable | None:
        """The state, and the deciders that hold entries back."""
        try:
            found = fold(None).broker.delivery(self.topic, self.subscription)
        except KeyError:
            return None
        if found.backlog == 0 or found.consumers == 0:
            return None
        return found.state, frozenset(each.decider for each in found.verdicts if each.blocks)

    def text(self, fold: FoldLog) -> str:
        """The same, whatever the log."""
        return f"stuck({_argument(self.topic)}, {_argument(self.subscription)})"


class Lost(NamedTuple):
    """A rule takes a message from a subscription that has not acked it: TTL, a quota, a skip."""

    topic: str
    number: int

    def shape(self, fold: FoldLog) -> Hashable | None:
        """The first subscription that loses it, and the kind of row that says so."""
        folded = fold(None)
        position = folded.entries.get(self.topic, {}).get(self.number)
        if position is None:
            return None
        acked: set[str] = set()
        consumers: dict[tuple[str, int], str] = {}
        for (_, _, topic, command, _), rows in zip(folded.commands, folded.rows, strict=True):
            if isinstance(command, c.Subscribe) and topic == self.topic:
                consumers[command.connection, command.consumer_id] = command.subscription
            if isinstance(command, c.Ack) and topic == self.topic and _acks(command, position):
                acked.add(consumers.get((command.connection, command.consumer_id), ""))
            for row in rows:
                effect = row.effect
                if getattr(effect, "topic", None) != self.topic:
                    continue
                if isinstance(effect, SubscriptionEvent) and deletes(effect.cause):
                    acked.discard(effect.subscription)  # one that comes again has acked nothing
                if not isinstance(effect, Expired | Evicted | CursorMoved):
                    continue
                before, after = (
                    Position(effect.before_ledger, effect.before_entry),
                    Position(effect.after_ledger, effect.after_entry),
                )
                if effect.subscription not in acked and before < position <= after:
                    return effect.subscription, KINDS[type(effect)]
                if resets(effect) and after < position:
                    acked.discard(effect.subscription)
        return None

    def text(self, fold: FoldLog) -> str:
        """With the position that the message has in the log."""
        return f"lost({_argument(self.topic)}, {fold(None).entries[self.topic][self.number]})"


class Differs(NamedTuple):
    """The broker does something else under another profile."""

    one: str
    other: str

    def shape(self, fold: FoldLog) -> Hashable | None:
        """The command at which it first does, and the kinds of the rows in which it does."""
        one, other = fold(self.one), fold(self.other)
        for command, ours, theirs in zip(one.commands, one.rows, other.rows, strict=True):
            left, right = ([row.effect for row in rows] for rows in (ours, theirs))
            if left != right:
                kinds = (KINDS[type(each)] for each in left), (KINDS[type(each)] for each in right)
                return type(command.command).__name__, *map(tuple, kinds)
        return None

    def text(self, fold: FoldLog) -> str:
        """The same, whatever the log."""
        return f"differs({self.one}, {self.other})"


class Violates(NamedTuple):
    """The log violates an invariant of `streaming.answers.check.invariants`."""

    invariant: str

    def shape(self, fold: FoldLog) -> Hashable | None:
        """The topic and the subscription."""
        found, world = fold(None).judged()
        if self.invariant == "starved":
            starved = world.starved()
            found = [] if starved is None else [starved]
        return next((each[:3] for each in found if each.invariant == self.invariant), None)

    def text(self, fold: FoldLog) -> str:
        """The same, whatever the log."""
        return f"violates({self.invariant})"


class Function(NamedTuple):
    """What a function says of the outputs of a log."""

    function: Callable[[FoldedLog], object]

    def shape(self, fold: FoldLog) -> Hashable | None:
        """True if it is shown. Raises `KeepError` if the function fails."""
        outputs = fold(None)
        try:
            return True if self.function(outputs) else None
        except (Exception, SystemExit) as error:
            at = error.__traceback__ and error.__traceback__.tb_next
            where = f" in line {at.tb_lineno}" if at else ""
            raise KeepError(f"{self.text(fold)} failed{where}: {type(error).__name__}: {error}") from error

    def text(self, fold: FoldLog) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", "keep")


def keep_of(text: str, log: pa.Table) -> Keep:
    """What ``stuck(topic, subscription)``, ``lost(topic, L:E)``, ``differs(4.0, 4.2)`` or ``violates(invariant)`` means for a log.

    Raises `KeepError`.
    """
    found = re.fullmatch(r"\s*(\w+)\((.*)\)\s*", text, re.DOTALL)
    name, given = (found[1], _arguments(found[2])) if found else ("", [])
    match name, given:
        case "stuck", [topic, subscription]:
            return Stuck(full_topic_name(topic), subscription)
        case "lost", [topic, place]:
            try:
                position = from_words(place)
            except ValueError as error:
                raise KeepError(f"{text}: {error}") from None
            entries = _fold(commands_of(log)).entries.get(full_topic_name(topic), {})
            number = next((number for number, at in entries.items() if at == position), None)
            if number is None:
                raise KeepError(f"{text}: the log has no message {place} in {full_topic_name(topic)}")
            return Lost(full_topic_name(topic), number)
        case "differs", [one, other] if {one, other} <= {*PROFILE_OF}:
            return Differs(one, other)
        case "violates", [invariant] if invariant in INVARIANTS:
            return Violates(invariant)
    raise KeepError(
        f"{text}: expected stuck(TOPIC, SUBSCRIPTION), lost(TOPIC, LEDGER:ENTRY), differs(4.0, 4.2), "
        f"violates(INVARIANT) with one of {', '.join(INVARIANTS)}, or a Python file. "
        "A name with a comma must stand in double quotes"
    )


_ARGUMENT = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^,]*?)\s*(?:,|\Z)""", re.DOTALL)
"""An argument in quotes, or up to the next comma."""


def _arguments(text: str) -> list[str]:
    """The arguments in a text with commas between them. One in quotes may have commas, and in double quotes the escapes of JSON."""
    return [_unquoted(each) for each in _ARGUMENT.findall(f"{text},")[:-1]]


def _unquoted(argument: str) -> str:
    try:
        return msgspec.json.decode(argument, type=str)
    except UNDECODABLE:
        return argument[1:-1] if re.fullmatch("'[^']*'", argument) else argument


def _argument(name: str) -> str:
    """A name as an argument, in quotes if it would be read as something else."""
    return name if _arguments(name) == [name] else msgspec.json.encode(name).decode()


def _acks(command: c.Ack, position: Position) -> bool:
    ids = [from_wire(each.ledgerId, each.entryId) for each in command.message_id]
    return position in ids if command.ack_type == "Individual" else any(position <= each for each in ids)


# ---- minimizing


@checked
def minimize(
    log: str | Path | pa.Table,
    keep: str | Keep | Callable[[FoldedLog], object],
    *,
    progress: Callable[[int, int], None] | None = None,
    most: int | None = None,
    stop: Callable[[], bool] = _never,
) -> Minimized:
    """The smallest part of a log that shows the same as the whole. No command of it can be left out.

    Args:
        log: a file, or what `read_log` returns.
        keep: ``stuck(topic, subscription)``, ``lost(topic, L:E)``, ``differs(4.0, 4.2)``, ``violates(invariant)``, or a function
            that says of the outputs of a log, in `Folded.effects`, whether they show it.
        progress: called after each try with the number of tries and of the commands that are left.
        most: try so many logs at most.
        stop: asked again and again. From the first true on, the smallest log that was found so far is the answer.

    Raises `KeepError` if the log does not show it, `NothingSmaller` if `stop` came before there was a smaller log, `LogError`,
    `FileNotFoundError`.
    """
    log = log if isinstance(log, pa.Table) else read_log(log)
    kept = _kept(keep, log)
    tried, best = 0, list[LogCommand]()

    def shows(commands: list[LogCommand]) -> list[LogCommand] | None:
        nonlocal tried, best
        tried += 1
        left = _valid(commands)
        if kept.shape(_folding(left, stop)) != wanted:
            return None
        best = left
        if progress is not None:
            progress(tried, len(left))
        return left

    def left_out(clients: list[str]) -> list[str] | None:
        found = shows([each for each in whole if _client(each) in clients])
        return None if found is None else clients

    whole = commands_of(log)
    try:
        wanted = kept.shape(_folding(whole, stop))
        if wanted is None:
            raise KeepError("the log does not show what should be kept")
        clients = reduced([*dict.fromkeys(map(_client, whole))], left_out, most=most)
        commands = [each for each in whole if _client(each) in clients]
        while True:
            before = len(commands)
            commands = reduced(commands, shows, most=None if most is None else max(most - tried, 0))
            folded = {each.number for each in _fold(commands, stop=stop).commands}
            commands = [
                each for each in commands if each.number in folded
            ]  # not those whose entries are all gone
            if len(commands) == before:
                break
        complete = most is None or tried < most
    except _Stopped:
        if not best:
            raise NothingSmaller("it was stopped before it found a smaller log") from None
        commands, complete = best, False
    fold = _folding(commands)
    lines = [_line(each) for each in fold(None).commands]
    return Minimized(kept.text(fold), len(whole), len(lines), tried, lines, complete)


def _kept(keep: str | Keep | Callable[[FoldedLog], object], log: pa.Table) -> Keep:
    if isinstance(keep, str):
        return keep_of(keep, log)
    return keep if isinstance(keep, Keep) else Function(keep)


def commands_of(log: pa.Table) -> list[LogCommand]:
    """The commands of a log in one order, without what the gate refuses."""
    if "partition" in log.column_names:
        log = merge_partitions(log).log
    topics, values = log["topic"].to_pylist(), log["value"].to_pylist()
    found = []
    for number, (at, topic, given) in enumerate(
        zip(log["timestamp"].to_pylist(), topics, judge(topics, values), strict=True)
    ):
        command = command_in(given)
        if not isinstance(command, Refused):
            found.append(LogCommand(number, at, topic, command))
    places = {
        topic: {position: number for number, position in entries.items()}
        for topic, entries in _fold(found).entries.items()
    }
    return [
        each._replace(named={at: of[at] for at in _positions(each.command) if at in of})
        if (of := places.get(each.topic or ""))
        else each
        for each in found
    ]


def _positions(command: AnyCommand | Publish) -> list[Position]:
    """The positions that a command names."""
    match command:
        case c.Ack():
            ids = command.message_id
        case c.RedeliverUnacknowledgedMessages():
            ids = command.message_ids
        case c.Seek() if command.message_id is not None:
            ids = [command.message_id]
        case c.Subscribe() if command.start_message_id is not None:
            ids = [command.start_message_id]
        case c.Admin(body={"ledgerId": int(ledger), "entryId": int(entry)}):
            return [Position(ledger, entry)]
        case _:
            return []
    return [from_wire(each.ledgerId, each.entryId) for each in ids]


def _translated(each: LogCommand, entries: dict[int, Position]) -> AnyCommand | Publish | None:
    """The command with the positions that its entries have now. None: there are none of them.

    Commands that name a place rather than an entry take the nearest earlier entry.
    """
    command = each.command
    if not each.named:
        return command

    def at(position: Position, *, nearest: bool) -> Position | None:
        number = each.named.get(position)
        if number is None:
            return position
        if not nearest:
            return entries.get(number)
        earlier = max((other for other in entries if other <= number), default=None)
        return None if earlier is None else entries[earlier]

    def ids(given: list[MessageIdData], *, nearest: bool) -> list[MessageIdData]:
        found = []
        for id_ in given:
            position = at(from_wire(id_.ledgerId, id_.entryId), nearest=nearest)
            if position is not None:
                found.append(msgspec.structs.replace(id_, ledgerId=position.ledger, entryId=position.entry))
        return found

    match command:
        case c.Ack():
            left = ids(command.message_id, nearest=command.ack_type == "Cumulative")
            return msgspec.structs.replace(command, message_id=left) if left else None
        case c.RedeliverUnacknowledgedMessages():
            left = ids(command.message_ids, nearest=False)
            return msgspec.structs.replace(command, message_ids=left) if left else None
        case c.Seek() if command.message_id is not None:
            left = ids([command.message_id], nearest=True)
            return msgspec.structs.replace(command, message_id=left[0]) if left else None
        case c.Subscribe() if command.start_message_id is not None:
            left = ids([command.start_message_id], nearest=True)
            return msgspec.structs.replace(command, start_message_id=left[0]) if left else command
        case c.Admin(body=dict(body)):
            (position,) = each.named
            found = at(position, nearest=True)
            if found is None:
                return None
            return msgspec.structs.replace(
                command, body={**body, "ledgerId": found.ledger, "entryId": found.entry}
            )
    return command


def shown(text: str, lines: Iterable[str]) -> bool:
    """Does a log in JSON Lines show what `keep_of` makes of the text?"""
    log = read_lines((line.encode() for line in lines), "the log")
    return keep_of(text, log).shape(_folding(commands_of(log))) is not None


def shown_by(function: Callable[[FoldedLog], object], lines: Iterable[str]) -> bool:
    """Does a function of the outputs say so of a log in JSON Lines?"""
    log = read_lines((line.encode() for line in lines), "the log")
    return bool(function(_fold(commands_of(log))))


def write(found: Minimized, function: str | None, out: Path, test: Path) -> None:
    """Write the log to `out` and its `pytest_file` to `test`. The log is the last to get its name: with it, all is there.

    Raises `InTheWay`."""
    with new_file(out) as lines, new_file(test) as python:
        lines.write("".join(f"{line}\n" for line in found.lines).encode())
        python.write(pytest_file(found, function).encode())


def pytest_file(found: Minimized, function: str | None = None) -> str:
    """A test with the log in it, which passes as long as the log shows what it shows. `function`: the source of a file that
    says so, with a function `keep`.

    Every text that comes from outside is written as a literal in ASCII, so none of it becomes code. The source alone is code. It
    stands first, as its imports from `__future__` must, and shares no names with the test but `keep`."""
    source = "" if function is None else f"{function.strip()}\n\n\n"
    name, wanted = ("shown", ascii(found.keep)) if function is None else ("shown_by", "keep")
    about = f"The smallest of {counted(found.before, 'command')} that show: {found.keep}."
    lines = "".join(f"        {line!a},\n" for line in found.lines)
    return (
        f"{source}def test_the_log_shows_it() -> None:\n"
        f"    {about!a}\n"
        f"    from streaming.answers.check.minimize import {name}\n\n"
        f"    log = [\n{lines}    ]\n"
        f"    assert {name}({wanted}, log)\n"
    )


def _line(each: LogCommand) -> str:
    topic = {} if each.topic is None else {"topic": each.topic}
    fields = {"timestamp": each.timestamp, **topic, **msgspec.json.decode(to_json(each.command))}
    return msgspec.json.encode(fields).decode()


def _client(each: LogCommand) -> str:
    """The client that a command comes from: a connection, or a producer of the short form."""
    command = each.command
    return (
        f"producer {command.producer}" if isinstance(command, Publish) else f"connection {command.connection}"
    )


def _valid(commands: list[LogCommand]) -> list[LogCommand]:
    """The commands without those whose producer or consumer nobody creates."""
    producers: set[tuple[str, int]] = set()
    consumers: set[tuple[str, int]] = set()
    found = []
    for each in commands:
        command = each.command
        match command:
            case c.Producer():
                producers.add((command.connection, command.producer_id))
            case c.Subscribe():
                consumers.add((command.connection, command.consumer_id))
            case c.Send() if command.message_id is not None:
                pass  # of a shadow topic's source, which needs no producer
            case c.Send() | c.CloseProducer():
                if (command.connection, command.producer_id) not in producers:
                    continue
            case (
                c.Flow() | c.Ack() | c.RedeliverUnacknowledgedMessages() | c.CloseConsumer() | c.Unsubscribe() | c.Seek()
                | c.GetLastMessageId()
            ):  # fmt: skip
                if (command.connection, command.consumer_id) not in consumers:
                    continue
        found.append(each)
    return found


# ---- folding


def _folding(commands: list[LogCommand], stop: Callable[[], bool] = _never) -> FoldLog:
    done: dict[str | None, FoldedLog] = {}

    def fold(profile: str | None) -> FoldedLog:
        if profile not in done:
            done[profile] = _fold(commands, profile, stop)
        return done[profile]

    return fold


class _Names:
    """Which record wrote which entry, in the whole log and in what is left of it."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str, int | str, int], int] = {}
        self.entries: dict[str, dict[int, Position]] = {}

    def sent(self, each: LogCommand) -> None:
        """Note a publish."""
        command = each.command
        if isinstance(command, c.Send):
            self._sent[each.topic or "", command.connection, command.producer_id, command.sequence_id] = (
                each.number
            )
        elif isinstance(command, Publish):
            self._sent[each.topic or "", "", command.producer, command.sequence_id] = each.number

    def stored(self, rows: Iterable[Row]) -> None:
        """Note the entries that were stored."""
        for row in rows:
            effect = row.effect
            if isinstance(effect, SendReceipt) and effect.ledger_id > 0:
                who = effect.producer_name if effect.producer_id is None else effect.producer_id
                number = self._sent.get((effect.topic, effect.connection, who, effect.sequence_id))
                if number is not None:
                    position = Position(effect.ledger_id, effect.entry_id)
                    self.entries.setdefault(effect.topic, {})[number] = position


def _configures(command: AnyCommand | Publish) -> TypeGuard[c.BrokerConfig]:
    """Whether a command has a profile that counts. A row on a refused one has the command in it, so that stays as it is."""
    return isinstance(command, c.BrokerConfig) and is_accepted(command)


def _fold(
    commands: Sequence[LogCommand], profile: str | None = None, stop: Callable[[], bool] = _never
) -> FoldedLog:
    """Folds commands of a whole log. Their positions are those of the whole log. Raises `_Stopped`."""
    broker = Broker()
    names, kept, all_rows = _Names(), list[LogCommand](), list[list[Row]]()
    if profile is not None and not any(_configures(each.command) for each in commands):
        broker.apply(0, commands[0].timestamp if commands else 0, None, c.BrokerConfig(profile=profile), b"")  # type: ignore[arg-type]
        broker.take()
    for each in commands:
        if stop():
            raise _Stopped
        command = _translated(each, names.entries.get(each.topic or "", {}))
        if command is None:
            continue
        if profile is not None and _configures(command):
            command = msgspec.structs.replace(command, profile=profile)
        names.sent(each)
        broker.apply(broker.offset + 1, each.timestamp, each.topic, command, to_binary(command))
        rows = broker.take()
        names.stored(rows)
        kept.append(each._replace(command=command))
        all_rows.append(rows)
    return FoldedLog(kept, all_rows, broker, names.entries, stop)
