"""What `magnetar explain` prints: each answer begins with the answer, then what to do, then the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from schemas.printable import counted, some_of
from schemas.units import moment
from streaming.answers.sampled import sampled_note

if TYPE_CHECKING:
    from streaming.answers.explain.life import Life
    from streaming.answers.explain.stats.answers import Answers
    from streaming.broker.dispatch.verdict import Verdict
    from streaming.broker.persistent.cleanup.backlog_quota import Quotas
    from streaming.broker.persistent.cleanup.inactive_subscriptions import InactiveSubscriptions
    from streaming.broker.persistent.cleanup.inactivity import InactiveTopic
    from streaming.broker.persistent.cleanup.message_expiry import Expiry, SubscriptionExpiry
    from streaming.broker.persistent.cleanup.trimming import Retention
    from streaming.broker.persistent.delivery import Delivery, EntryState
    from streaming.broker.persistent.publish.deduplication_snapshots import (
        DeduplicationSnapshots,
        RecoveredId,
    )
    from streaming.broker.persistent.publish.producer_purge import AbsentProducers
    from streaming.broker.topic.producing import Producing

    Checked = Expiry | InactiveTopic | InactiveSubscriptions | DeduplicationSnapshots | AbsentProducers
    """What a periodic check does to a topic."""

    OfTopic = Retention | Quotas | Producing | Checked
    """An answer about a topic as a whole."""

IN_FULL, IN_SHORT = 10, 20
"""So many answers about a cluster's topic are shown in full, and so many others in a line each. --json has all."""

_MEMBERS = 5
"""So many of the consumers that are to blame are shown."""

_VERDICTS = 20
"""So many verdicts that block are shown, and so many others."""

_STATES = {
    "caught up": "It has caught up: its backlog is empty.",
    "no consumers": "Nobody gets its entries: no consumer is connected.",
    "in flight": "Every entry of its backlog is with a consumer and not acked yet: it waits for acks.",
    "waiting for a time": "The entries that no consumer has yet wait for a point in time.",
    "held back": "Entries are waiting, but the dispatcher sends none of them now:",
    "deleted": "Nothing waits for it. The ledgers of what its backlog counts were deleted before it began at them.",
    "lost": "Entries are with nobody, and wait for nothing that comes by itself:",
    "receiving": "Its consumers receive. It has a backlog, and the stats show nothing that holds it back.",
    "not triggered": "Nothing holds its entries back. Like Pulsar, the broker dispatches on the next "
    "event, such as a message or a FLOW.",
}
_NOTHING_SEEN = (
    "Entries are waiting, consumers could take them, and the stats show nothing that surely holds them back."
)


def _sampled(found: Life | Delivery | OfTopic) -> Iterator[str]:
    return (f"  {each}" for each in sampled_note([found.topic] if found.sampled else []))


def life_lines(life: Life) -> Iterator[str]:
    """The history of a message."""
    what = life.position or f"sequence id {life.sequence_id} of {life.producer}"
    if life.example is not None:
        yield f"No topic was given. As an example, a message that was chosen because {life.example}:"
    yield f"{life.topic}, {what}: {life.text}"
    yield from _sampled(life)
    if life.events and life.fate == "stored":
        yield "\nWhat happened:"
        for each in life.events:
            whose = f"{each.subscription}: " if each.subscription else ""
            yield f"  {_time(each.clock)}  {whose}{each.text}"
    elif life.events:
        yield f"  at {_time(life.events[0].clock)}, record {life.events[0].partition}:{life.events[0].offset}"
    if life.subscriptions:
        when = f" at {_time(life.clock)}" if life.clock is not None else ""
        yield f"\nWhat became of it{when}:"
        width = max(len(each.subscription) for each in life.subscriptions)
        for of in life.subscriptions:
            yield f"  {of.subscription.ljust(width)}  {of.outcome}: {of.text}"


# -- subscriptions ---------------------------------------------------------------------------------------------------------


def delivery_lines(found: Delivery) -> Iterator[str]:
    """Why a subscription gets what it gets."""
    yield f"{found.topic}, subscription {found.subscription}{_typed(found.type)}: {headline(found)}"
    yield f"  {_NOTHING_SEEN if found.state == 'not triggered' and found.sends is None else _STATES[found.state]}"
    yield from _verdicts(found.verdicts)
    yield from _to_do(found.to_do)
    yield from _sampled(found)
    yield f"  at {_time(found.clock)}"
    yield f"  {_backlog(found)}"
    if found.mark_delete is not None:
        yield (
            f"  mark-delete position {found.mark_delete}, read position {found.read_position}, last entry "
            f"{found.last_confirmed}"
        )
    if found.rate_out is not None:
        acked = "" if found.ack_rate is None else f", acked {found.ack_rate:.3g}/s"
        yield f"  received {found.rate_out:.3g} messages/s{acked} in the last interval of the stats"
    if found.oldest is not None:
        yield f"  oldest unacknowledged message published at {_time(found.oldest)} ({_ago(found.clock - found.oldest)} ago)"
    for number, entry in enumerate(found.first):
        yield f"  {'first unacknowledged entry' if number == 0 else 'first that no consumer has'} {_entry(entry)}"
    blamed = {each.consumer for each in found.verdicts if each.blocks and not _is_inactive(each)}
    if any(each.blocks and each.decider in ("draining hash", "recently joined") for each in found.verdicts):
        blamed.update(each.name for each in found.members)  # others hold the keys
    for member in [each for each in found.members if each.name in blamed][:_MEMBERS]:
        acked = "" if member.last_acked is None else f", acked last at {_time(member.last_acked)}"
        since = "" if member.since is None else f", connected since {member.since}"
        name = member.name or "a consumer without a name"
        yield f"  {name} is at {member.address or 'an unknown address'} ({member.client or 'unknown client'}){since}{acked}"
    yield from _unknown(found.unknown)


def _typed(type_: str) -> str:
    """A subscription without consumers may have no type: the first one sets it."""
    return "" if type_ == "None" else f" ({type_})"


def headline(found: Delivery) -> str:
    """The answer in a few words."""
    if found.state not in ("held back", "not triggered"):
        of_topic = any(each.decider == "terminated" for each in found.verdicts)
        return f"{found.state}{', and the topic is terminated' * of_topic}"
    sure = _deciders([each for each in found.verdicts if each.blocks and not _is_inactive(each)])
    if found.state == "held back":
        return f"held back by {sure or 'the active consumer'}"
    perhaps = _deciders([each for each in found.verdicts if each.blocks or not each.sure])
    return f"not triggered{f', perhaps held back by {perhaps}' if perhaps else ''}"


def _is_inactive(verdict: Verdict) -> bool:
    """Whether it only says that a consumer is not the active one, which is no reason for the subscription."""
    return verdict.decider == "active consumer" and verdict.consumer is not None


def _deciders(verdicts: Sequence[Verdict], most: int = 3) -> str:
    names = [*dict.fromkeys(map(_name, verdicts))]
    return some_of(names, most)


def _name(verdict: Verdict) -> str:
    return f"{verdict.decider} ({verdict.consumer})" if verdict.consumer else verdict.decider


def _backlog(found: Delivery) -> str:
    messages = ""
    if found.analysis is not None:
        messages = (
            f" ({counted(found.analysis['messages'], 'message')}{' or more' * found.analysis['aborted']})"
        )
    parts = [
        f"{count:,} {what}"
        for count, what in (
            (found.in_flight, "in flight"), (found.to_redeliver, "to redeliver"), (found.delayed, "delayed"),
            (found.unread, "not read yet"), (found.lost or None, "lost"), (found.gone or None, "deleted"),
        )
        if count is not None
    ]  # fmt: skip
    return f"backlog {counted(found.backlog, 'entry')}{messages}" + (f": {', '.join(parts)}" if parts else "")


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    blocking = [each for each in verdicts if each.blocks]
    others = [each for each in verdicts if not each.blocks]
    others.sort(key=lambda each: each.sure)
    shown = [*blocking[:_VERDICTS], *others[:_VERDICTS]]
    width = max((len(_name(each)) for each in shown), default=0)
    for each in shown:
        says = "holds back" if each.blocks else "ok" if each.sure else "may hold"
        yield f"    {says.rjust(10)}  {_name(each).ljust(width)}  {each.text}{_until(each.until)}"
    if len(shown) < len(verdicts):
        yield f"    and {len(verdicts) - len(shown):,} more, {len(blocking[_VERDICTS:]):,} of which hold back: --json has them"


def _to_do(advice: Sequence[str]) -> Iterator[str]:
    for number, each in enumerate(advice):
        yield f"  {'To do:' if number == 0 else '   or:'} {each}"


def _unknown(texts: Sequence[str]) -> Iterator[str]:
    for each in texts:
        yield f"  not known: {each}"


def _entry(entry: EntryState) -> str:
    acked = (
        ""
        if entry.messages_acked is None
        else f"; {counted(entry.messages_acked, 'message')} of its batch acked"
    )
    return f"{entry.position}: {entry.state}, {entry.text}{_until(entry.until)}{acked}"


# -- storage ---------------------------------------------------------------------------------------------------------------


def retention_lines(found: Retention) -> Iterator[str]:
    """Why ledgers are there."""
    yield f"{found.topic}, {counted(len(found.ledgers), 'ledger')} of {found.size:,} bytes: {_keepers(found)}"
    yield from _sampled(found)
    yield f"  at {_time(found.clock)}"
    if found.minutes is None or found.megabytes is None:
        yield "  retention of what is consumed: not known"
    else:
        size = "unlimited" if found.megabytes < 0 else f"{found.megabytes} MB"
        time = "unlimited" if found.minutes < 0 else f"{found.minutes} min"
        yield f"  retention of what is consumed: {time}, {size} ({found.level})"
    if not found.unknown:
        yield _next_check(found.next_check, found.unchecked)
    yield from _to_do(found.to_do)
    for each in found.ledgers[:_LEDGERS]:
        until = "" if each.until is None else f"; retention time ends at {_time(each.until)}"
        goes = "; the next check deletes it" if each.ledger in found.deletes else ""
        closed = "" if each.closed_at is None else f", closed {_time(each.closed_at)}"
        yield f"  ledger {each.ledger} ({counted(each.entries, 'entry')}, {counted(each.size, 'byte')}{closed})"
        yield f"    {each.reason}: {each.text}{until}{goes}"
    if len(found.ledgers) > _LEDGERS:
        yield f"  and {len(found.ledgers) - _LEDGERS:,} more ledgers: --json has them"
    yield from _unknown(found.unknown)


_LEDGERS = 200
"""So many ledgers are shown, the oldest ones."""


def _keepers(found: Retention) -> str:
    """What keeps the ledgers, in a few words."""
    counts = Counter(each.reason for each in found.ledgers)
    first = next((each for each in found.ledgers if each.reason == "cursor"), None)
    parts = []
    for reason, count in counts.items():
        whose = f" of {', '.join(first.cursors[:3])}" if reason == "cursor" and first is not None else ""
        parts.append(f"{count} {reason}{whose}")
    return ", ".join(parts) or "none"


def quotas_lines(found: Quotas) -> Iterator[str]:
    """What backlog quotas say."""
    exceeded = [each.type for each in found.quotas if each.state == "exceeded"]
    known = any(each.state != "not known" for each in found.quotas)
    answer = (
        f"{' and '.join(exceeded)} exceeded" if exceeded else "no quota is exceeded" if known else "not known"
    )
    yield f"{found.topic}, backlog quotas: {answer}"
    yield from _sampled(found)
    yield f"  at {_time(found.clock)}"
    if found.slowest is None:
        yield "  no durable subscription has a backlog"
    elif found.mark_delete is None:
        yield f"  the slowest cursor is {found.slowest}"
    else:
        yield f"  the slowest cursor is {found.slowest}, mark-delete position {found.mark_delete}"
    if not found.unknown:
        yield _next_check(found.next_check, found.unchecked)
    yield from _to_do(found.to_do)
    for each in found.quotas:
        how = str if each.type == "destination_storage" else _seconds
        unit = " bytes" * (each.type == "destination_storage")
        yield f"  {each.type}: {each.state}"
        if each.state not in ("no limit", "not known"):
            used = "unknown" if each.used is None else f"{how(each.used)}{unit}"
            left = "" if each.headroom is None else f", headroom {how(each.headroom)}{unit}"
            yield f"    limit {how(each.limit)}{unit}, used {used}{left} ({each.policy}, {each.level})"
        yield f"    {each.text}"
    for of in found.backlogs:
        size = "" if of.size is None else f", {of.size:,} bytes"
        oldest = "" if of.oldest is None else f", oldest message {_ago(found.clock - of.oldest)} old"
        yield f"  backlog of {of.subscription}: {_entries(of.entries)}{size}{oldest}"
    for eviction in found.evicts:
        yield (
            f"  The next check evicts {_entries(eviction.entries)} of {eviction.subscription}, from {eviction.before} to "
            f"{eviction.after}."
        )
    if found.disconnects:
        yield f"  The next check closes the producers {', '.join(found.disconnects)}."
    if not found.evicts and not found.disconnects and found.next_check is not None:
        yield "  The next check evicts nothing, unless a command comes before."
    yield from _unknown(found.unknown)


def _next_check(at: int | None, unchecked: str | None) -> str:
    if unchecked is not None:
        return f"  not checked: {unchecked}"
    return "  not checked: its interval is 0" if at is None else f"  next check at {_time(at)}"


# -- what checks do next ----------------------------------------------------------------------------------------------------


_SHOWN = 20
"""So many subscriptions and producers of a check are shown."""


def _head(found: Checked) -> Iterator[str]:
    yield f"  at {_time(found.clock)}"
    yield _next_check(found.next_check, found.unchecked)


def _more(all_: Sequence[object]) -> Iterator[str]:
    if len(all_) > _SHOWN:
        yield f"  and {len(all_) - _SHOWN:,} more: --json has them"


def expiry_lines(found: Expiry) -> Iterator[str]:
    """What message TTL expires."""
    if found.ttl <= 0:
        yield f"{found.topic}, message TTL: off (messageTTL is 0, {found.level})"
        yield from _sampled(found)
        return
    subscriptions = sorted(found.subscriptions, key=_expires_first)
    first = next((each for each in subscriptions if each.expires is not None), None)
    answer = "nothing expires in sight"
    if first is not None and first.expires is not None:
        answer = (
            f"next, {_entries(first.expires.entries)} of {first.subscription} at {_time(first.expires.at)}"
        )
    yield f"{found.topic}, message TTL: {answer}"
    yield from _sampled(found)
    yield from _head(found)
    yield f"  messageTTL {found.ttl} s ({found.level})"
    for each in subscriptions[:_SHOWN]:
        yield f"  {each.subscription}: {each.state}: {each.text}"
        if each.published is not None:
            age = found.clock - each.published
            yield f"    {each.position} was published at {_time(each.published)}" + (
                f" ({_ago(age)} ago)" if age >= 0 else ""
            )
        if (of := each.expires) is not None:
            yield f"    expires {_entries(of.entries)} at {_time(of.at)}, from {of.before} to {of.after}"
    yield from _more(subscriptions)
    yield from _unknown(found.unknown)


def _expires_first(each: SubscriptionExpiry) -> tuple[bool, int]:
    return each.expires is None, 0 if each.expires is None else each.expires.at


def inactive_topic_lines(found: InactiveTopic) -> Iterator[str]:
    """Why an inactive topic is not deleted, or when."""
    if found.state == "off":
        yield f"{found.topic}, inactive topic: never deleted ({found.text})"
        yield from _sampled(found)
        return
    goes = "" if found.deletes_at is None else f", deleted at {_time(found.deletes_at)}"
    yield f"{found.topic}, inactive topic: {found.state} ({found.text}){goes}"
    yield from _sampled(found)
    yield from _head(found)
    yield f"  {found.mode}, after {found.seconds} s ({found.level})"
    if found.last_active is not None:
        keeps = "" if found.keeps is None else f", kept for {_seconds(found.keeps * 1000)}"
        yield f"  last used at {_time(found.last_active)}{keeps}"


def inactive_subscriptions_lines(found: InactiveSubscriptions) -> Iterator[str]:
    """Which inactive subscriptions are deleted, and when."""
    going = [each for each in found.subscriptions if each.due is not None]
    title = f"{found.topic}, inactive subscriptions:"
    if found.minutes <= 0 and not going:
        yield f"{title} never deleted (subscriptionExpirationTime is 0, {found.level})"
        return
    yield f"{title} {len(going):,} of {len(found.subscriptions):,} unused"
    yield from _head(found)
    yield f"  subscriptionExpirationTime {found.minutes} min ({found.level})"
    shown = sorted(found.subscriptions, key=lambda each: (each.due is None, each.due or 0))
    for each in shown[:_SHOWN]:
        since = "" if each.last_active is None else f", last used at {_time(each.last_active)}"
        goes = "" if each.deletes_at is None else f", deleted at {_time(each.deletes_at)}"
        yield f"  {each.subscription}: {each.state} ({each.text}){since}{goes}"
    yield from _more(shown)


def snapshots_lines(found: DeduplicationSnapshots) -> Iterator[str]:
    """What the snapshots of deduplication keep."""
    title = f"{found.topic}, deduplication:"
    if found.state == "off":
        yield f"{title} off{', and on with the next load' if found.wanted else ''} ({found.level})"
        yield from _sampled(found)
        return
    yield f"{title} {found.status}{'' if found.wanted else f', and off with the next load ({found.level})'}"
    yield from _sampled(found)
    yield from _head(found)
    taken = "before the topic was loaded, or never" if found.taken is None else f"at {_time(found.taken)}"
    stored = "" if found.written else ", held back by managedLedgerMaxMarkDeleteRate"
    yield f"  last snapshot {taken}: {counted(found.producers, 'producer')}, up to {found.position}{stored}"
    at = "" if found.snapshot_at is None else f", taken at {_time(found.snapshot_at)}"
    yield f"  next snapshot: {found.state} ({found.text}){at}"
    yield f"    deduplicationSnapshotInterval {found.interval} s ({found.interval_level}), or after {_entries(found.entries_left)}"
    yield f"  a load reads {_entries(found.entries)} after the last snapshot"
    if found.unload == found.crash:
        yield f"  an unload or a crash {_changes(found.unload)}"
    else:
        yield f"  an unload {_changes(found.unload)}"
        yield f"  a crash {_changes(found.crash)}"


def _changes(changes: Sequence[RecoveredId]) -> str:
    """What a load changes."""
    if not changes:
        return "forgets nothing that is stored"
    ids = [f"{each.producer} ({_id(each.before)} → {_id(each.after)})" for each in changes]
    return f"changes the last sequence ids of {some_of(ids, _SHOWN)}"


def _id(sequence_id: int | None) -> str:
    return "none" if sequence_id is None else str(sequence_id)


def absent_producers_lines(found: AbsentProducers) -> Iterator[str]:
    """Which producers are forgotten, and when."""
    shown = [each for each in found.producers if each.state != "kept"]
    kept = len(found.producers) - len(shown)
    title = f"{found.topic}, absent producers:"
    if not found.producers:
        yield f"{title} none"
        return
    yield f"{title} {len(shown):,} to forget, {kept:,} kept"
    yield from _head(found)
    yield f"  brokerDeduplicationProducerInactivityTimeoutMinutes {found.minutes}"
    for each in shown[:_SHOWN]:
        since = "" if each.since is None else f" since {_time(each.since)}"
        goes = "" if each.forgotten_at is None else f", forgotten at {_time(each.forgotten_at)}"
        yield f"  {each.producer}: {each.state}{since}, sequence id {_id(each.sequence_id)}{goes}"
    yield from _more(shown)
    if kept:
        yield f"  {counted(kept, 'producer')} known from the topic's entries alone: kept until they connect and leave"


# -- producers -------------------------------------------------------------------------------------------------------------


def producing_lines(found: Producing) -> Iterator[str]:
    """Who produces, and what a new producer gets."""
    yield f"{found.topic}, producers: {producers_headline(found)}"
    yield from _sampled(found)
    yield from _verdicts(found.verdicts)
    yield from _to_do(found.to_do)
    epoch = "" if found.epoch is None else f", topic epoch {found.epoch}"
    yield f"  at {_time(found.clock)}{epoch}"
    for each in found.producers[:_VERDICTS]:
        since = "" if each.since is None else f" since {_time(each.since)}"
        where = f", {each.where}" if each.where else ""
        text = f": {each.text}" if each.text else ""
        yield f"  {each.name} ({each.access_mode}{where}) {each.state}{since}{text}"
    if len(found.producers) > _VERDICTS:
        yield f"  and {len(found.producers) - _VERDICTS:,} more: --json has them"
    yield "  a new producer now:"
    modes: dict[str, list[str]] = {}
    for of in found.admissions:
        error = "" if of.error is None else f" with {of.error}"
        modes.setdefault(f"{of.answer}{error}" + (f": {of.text}" if of.text else ""), []).append(
            of.access_mode
        )
    names = {text: "any" if len(modes) == 1 else ", ".join(of_text) for text, of_text in modes.items()}
    width = max(map(len, names.values()), default=0)
    for text, name in names.items():
        yield f"    {name.ljust(width)}  {text}"
    if found.happened:
        yield "  What happened last:"
    for event in found.happened:
        who = "" if event.producer is None else f"{event.producer}: "
        yield f"    {_time(event.clock)}  {who}{event.text}"
    yield from _unknown(found.unknown)


def producers_headline(found: Producing) -> str:
    """The answer in a few words."""
    blocking = [each for each in found.verdicts if each.blocks]
    if blocking:
        return blocking[0].text
    if perhaps := [each for each in found.verdicts if not each.sure]:
        as_of = ", as of the last check" if perhaps[0].decider == "backlogQuota" else ""
        return f"perhaps held: {perhaps[0].text}{as_of}"
    refused = found.refused
    if refused is not None:
        return f"a new one ({refused.access_mode}) is refused with {refused.error}: {refused.text}"
    return f"{counted(len(found.producers), 'producer')}, and new ones get in"


# -- of a cluster ----------------------------------------------------------------------------------------------------------


def answers_lines(found: Answers) -> Iterator[str]:
    """All answers about a cluster's topic, with a summary first if there are several."""
    full = [each for each in found.subscriptions if _is_trouble(each)]
    one = len(found.subscriptions) == 1
    if one:
        full = found.subscriptions
    of_topic = [*map(producing_lines, found.producers[:IN_FULL]), *map(quotas_lines, found.quotas[:IN_FULL]),
                *map(retention_lines, found.retention[:IN_FULL])]  # fmt: skip
    summed = not (one and not of_topic) and bool(found.subscriptions or not of_topic)
    if summed:
        yield _summary(found, full)
    for number, lines in enumerate([*of_topic, *map(delivery_lines, full[:IN_FULL])]):
        if number or summed:
            yield ""
        yield from lines
    rest = full[IN_FULL:]
    if len(found.subscriptions) > 1:
        rest += [each for each in found.subscriptions if not _is_trouble(each)]
    if rest:
        yield ""
    for each in rest[:IN_SHORT]:
        where = f"{each.topic}, " if found.partitions else ""
        yield f"{where}subscription {each.subscription}{_typed(each.type)}: {headline(each)}, backlog {_entries(each.backlog)}"
    if len(rest) > IN_SHORT:
        states = Counter(each.state for each in rest[IN_SHORT:])
        shown = ", ".join(f"{count:,} {state}" for state, count in states.items())
        yield f"and {len(rest) - IN_SHORT:,} more ({shown}): --subscription shows one of them, --json all"
    more = (("quotas", found.quotas), ("storage", found.retention), ("producers", found.producers))
    for what, answers in more:
        if len(answers) > IN_FULL:
            yield f"and the {what} of {len(answers) - IN_FULL:,} more partitions: --json has them"
    if found.missing:
        yield ""
    for text in found.missing:
        yield f"Not known: {text}"


def _is_trouble(found: Delivery) -> bool:
    from streaming.answers.explain.stats.answers import TROUBLE

    return found.state in TROUBLE


def _summary(found: Answers, trouble: Sequence[Delivery]) -> str:
    """The worst first: producers that are kept out, then the subscriptions."""
    of = f" ({found.partitions:,} partitions)" if found.partitions else ""
    producers = [f"producers: {producers_headline(found.producers[0])}"] if found.producers else []
    return f"{found.topic}{of}: {'; '.join([*producers, _subscriptions(found, trouble)])}"


def _subscriptions(found: Answers, trouble: Sequence[Delivery]) -> str:
    total = len(found.subscriptions)
    needy = [each for each in trouble if _is_trouble(each)]
    if not total:
        return "no subscriptions"
    if not needy:
        count = "the subscription has" if total == 1 else f"all {total:,} subscriptions have"
        return f"nothing is stuck, {count} caught up, receive, or wait for a time"
    states = Counter(each.state for each in needy)
    shown = ", ".join(f"{count:,} {state}" for state, count in states.items())
    what = "subscriptions of partitions" if found.partitions else "subscriptions"
    return f"{len(needy):,} of {total:,} {what} may need you: {shown}"


# -- numbers and times -----------------------------------------------------------------------------------------------------


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"


def _ago(milliseconds: int) -> str:
    """A duration, in the largest unit of which there are two at least."""
    seconds = max(milliseconds, 0) // 1000
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _until(until: int | None) -> str:
    return "" if until is None else f", until {_time(until)}"


def _time(clock: int) -> str:
    return moment(clock).strftime("%Y-%m-%d %H:%M:%S.") + f"{clock % 1000:03d}"
