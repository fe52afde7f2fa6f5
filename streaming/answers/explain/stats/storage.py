"""Why a topic of a cluster still stores data, and whose backlog exceeds a quota, as far as stats show it."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any
from urllib.parse import unquote_plus

from streaming.answers.explain import advice
from streaming.answers.explain.stats.observed import QUOTA_TYPES, Observed, ShownFields
from streaming.broker.ledger.managed_ledger import MEGABYTE
from streaming.broker.persistent.cleanup.backlog_quota import (
    NO_LIMIT,
    WITHIN,
    Backlog,
    Quota,
    Quotas,
    QuotaState,
    closes_producers,
    evicts,
    exceeds,
    is_limit,
)
from streaming.broker.persistent.cleanup.trimming import (
    LAST_OF_TERMINATED,
    WRITTEN_TO,
    KeptBecause,
    KeptLedger,
    Retention,
    goes_after,
    held_by,
    less_than,
)
from streaming.broker.policies.hierarchy import QuotaType
from streaming.broker.position import Position

MOST_NAMED = 100
"""Of so many cursors that hold a ledger, the slowest ones, an answer has the names."""
SHOWN = 5
"""So many backlogs are shown."""

_AGE = "oldestBacklogMessageAgeSeconds"
"""The age that the last check knew (4.0), negative if it knew none."""
_NOT_KNOWN = "not known"
_OF_PULSAR = ("pulsar.", "__")
"""Begin the names of durable cursors that are no subscriptions: of deduplication, replication and compaction."""


def explain_quotas(observed: Observed) -> Quotas:
    """Whether a backlog quota is exceeded, and whose backlog that is."""
    slowest = _slowest(observed)
    backlogs = _backlogs(observed)
    oldest = min((each.oldest for each in backlogs if each.oldest is not None), default=None)
    quotas = [_quota(observed, type_, oldest) for type_ in QUOTA_TYPES]
    return Quotas(
        topic=observed.topic,
        clock=observed.clock,
        slowest=None if slowest is None else slowest[0],
        mark_delete=None if slowest is None or slowest[1] is None else str(slowest[1]),
        oldest=oldest,
        next_check=None,
        unchecked=None,
        quotas=quotas,
        evicts=[],
        disconnects=[],
        backlogs=backlogs[:SHOWN],
        unknown=[
            f"when the quotas are checked next, {_interval(observed, 'backlogQuotaCheckIntervalInSeconds', 's')}",
            *[_EVICTED] * any(evicts(each.policy) and each.state != "no limit" for each in quotas),
        ],
        to_do=advice.of_quotas(observed.topic, quotas, None if slowest is None else slowest[0]),
    )


_EVICTED = (
    "what a quota has evicted: the stats don't tell; the broker's metric pulsar_storage_backlog_quota_exceeded_evictions_total counts "
    "how often one did"
)


def _interval(observed: Observed, setting: str, unit: str) -> str:
    if observed.config is None:
        return f"every {setting}"
    return f"every {getattr(observed.config, setting)} {unit} ({setting})"


def _durable(observed: Observed) -> dict[str, ShownFields]:
    """The durable subscriptions, which a quota and trimming count."""
    return {
        name: sub
        for name, sub in observed.subscriptions.items()
        if "isDurable" not in sub or sub.flag("isDurable")
    }


def cursors(observed: Observed) -> dict[str, Position] | None:
    """The mark-delete positions of the durable cursors, also of those that are no subscriptions, such as that of deduplication. None:
    they are not known."""
    if observed.internal is None:
        return None
    durable, found = _durable(observed), {}
    for name, cursor in observed.internal.items("cursors"):
        decoded = unquote_plus(name)
        marked = cursor.position("markDeletePosition")
        if (decoded in durable or decoded.startswith(_OF_PULSAR)) and marked is not None:
            found[decoded] = marked
    return found


def _slowest(observed: Observed) -> tuple[str, Position | None] | None:
    """The cursor whose backlog a quota counts: the one with the lowest mark-delete position."""
    positions = cursors(observed)
    if positions:
        name = min(positions, key=lambda each: (positions[each], each))
        return name, positions[name]
    if (named := observed.stats.text("oldestBacklogMessageSubscriptionName")) is not None:
        return named, None
    sizes = {name: sub.number("backlogSize") or 0 for name, sub in _durable(observed).items()}
    name = max(sizes, key=lambda each: sizes[each], default="")
    return (name, None) if name and sizes[name] > 0 else None


def _backlogs(observed: Observed) -> list[Backlog]:
    """The backlogs of the durable subscriptions, the largest first."""
    found = []
    for name, sub in _durable(observed).items():
        size, oldest = sub.number("backlogSize"), sub.number("earliestMsgPublishTimeInBacklog")
        found.append(
            Backlog(
                name,
                max(sub.number("msgBacklog") or 0, 0),
                size if size is not None and size >= 0 else None,
                oldest if oldest is not None and oldest > 0 else None,
            )
        )
    return sorted(found, key=lambda each: (-(each.size or 0), -each.entries, each.subscription))


def _quota(observed: Observed, type_: QuotaType, oldest: int | None) -> Quota:
    by_size = type_ == "destination_storage"
    stats, effective = observed.stats, observed.quota(type_)
    limit = stats.number("backlogQuotaLimitSize" if by_size else "backlogQuotaLimitTime")
    if effective is not None:
        limit = effective.value.limitSize if by_size else effective.value.limitTime
    used = _used(observed, oldest, by_size=by_size)
    if limit is not None and not by_size:
        limit *= 1000
    policy, level = (
        (_NOT_KNOWN, _NOT_KNOWN) if effective is None else (effective.value.policy, effective.level)
    )
    state: QuotaState
    does_evict = False
    if limit is None:
        state, text = (
            "not known",
            "what the limit is: the policies are not known, and the stats of this version don't show it",
        )
    elif not is_limit(type_, limit):
        state, text = "no limit", NO_LIMIT[type_]
    elif used is None and not by_size and stats.number(_AGE) is not None:
        state, text = "within its limit", _no_age(observed)
    elif used is None:
        state, text = "not known", "the stats of this version don't show how much is used"
    elif exceeds(type_, used, limit):
        state = "exceeded"
        does_evict, text = _exceeded(policy) if by_size or not evicts(policy) else _age_evicts(observed)
    else:
        state, text = "within its limit", WITHIN[type_]
    return Quota(
        type=type_,
        policy=policy,
        level=level,
        limit=-1 if limit is None else limit,
        used=used,
        headroom=None
        if state in ("no limit", "not known") or used is None or limit is None
        else limit - used,
        state=state,
        evicts=does_evict,
        text=text,
    )


def _exceeded(policy: str) -> tuple[bool, str]:
    """Whether the next check evicts, and what else it does."""
    if policy == _NOT_KNOWN:
        return False, "whether it evicts or blocks producers is not known: that takes the policies"
    if evicts(policy):
        return True, "the next check evicts, unless the excess is less than one entry"
    return False, closes_producers(policy)


def _age_evicts(observed: Observed) -> tuple[bool, str]:
    """The same of a quota of age that evicts."""
    if observed.config is None:
        return (
            True,
            "the next check evicts what is too old: whole closed ledgers, if the broker's settings don't make it precise",
        )
    if observed.config.preciseTimeBasedBacklogQuotaCheck:
        return True, "the next check expires what is older than nine tenths of the limit"
    if _in_open_ledger(observed):
        return (
            False,
            "there is nothing to evict: it evicts whole closed ledgers, and the slowest cursor's is open",
        )
    return True, "the next check evicts the ledgers that were closed before that"


def _no_age(observed: Observed) -> str:
    if not any(each.number("msgBacklog") for each in _durable(observed).values()):
        return "no entry is unacknowledged"
    none = "the last check knew no age: it has not run"
    if observed.config is not None and observed.config.preciseTimeBasedBacklogQuotaCheck:
        return none
    return f"{none}, or the ledger of the oldest unacknowledged entry is open (preciseTimeBasedBacklogQuotaCheck is false)"


def _in_open_ledger(observed: Observed) -> bool:
    """Whether the first entry that the slowest cursor has not acknowledged is in the ledger that is written to."""
    slowest, ledgers = _slowest(observed), observed.ledgers
    if slowest is None or slowest[1] is None or not ledgers:
        return False
    *closed, last = ledgers
    ledger, entry = slowest[1]
    return ledger >= last or (closed != [] and ledger == closed[-1] and entry + 1 >= ledgers[ledger][0])


def _used(observed: Observed, oldest: int | None, *, by_size: bool) -> int | None:
    if by_size:
        return observed.stats.number("backlogSize")
    if (age := observed.stats.number(_AGE)) is not None:
        return age * 1000 if age >= 0 else None
    return None if oldest is None else max(observed.clock - oldest, 0)


# -- ledgers ---------------------------------------------------------------------------------------------------------------


def explain_retention(observed: Observed) -> Retention:
    """Why a topic's ledgers are there."""
    retention, ledgers = observed.policy("retention"), observed.ledgers or {}
    positions = sorted((at, name) for name, at in (cursors(observed) or {}).items())
    found = Retention(
        topic=observed.topic,
        clock=observed.clock,
        minutes=None if retention is None else retention.value.retentionTimeInMinutes,
        megabytes=None if retention is None else retention.value.retentionSizeInMB,
        level=None if retention is None else retention.level,
        size=observed.stats.number("storageSize")
        or (0 if observed.internal is None else observed.internal.number("totalSize") or 0),
        next_check=None,
        unchecked=None,
        ledgers=[],
        deletes=[],
    )
    if observed.internal is None:
        found.unknown.append("which ledgers there are: that takes the internal stats")
        return found
    found.unknown.append(
        "when ledgers were closed: the stats don't show it, so how long retention by time keeps them is not known"
    )
    found.unknown.append(
        f"when the next check runs, {_interval(observed, 'retentionCheckIntervalInSeconds', 's')}"
    )
    total, keeper = sum(size for _, size in ledgers.values()), None
    last = next(reversed(ledgers), None)
    for id_, (entries, size) in ledgers.items():
        total -= size
        reason, text, holders = _reason(observed, id_, entries, total, positions, keeper, is_last=id_ == last)
        if reason in ("retention", "cursor") and keeper is None:
            keeper = id_
        found.ledgers.append(KeptLedger(id_, entries, size, None, reason, text, holders))
    found.to_do = advice.of_retention(found)
    return found


def _reason(
    observed: Observed,
    id_: int,
    entries: int,
    newer: int,
    positions: list[tuple[Position, str]],
    keeper: int | None,
    *,
    is_last: bool,
) -> tuple[KeptBecause, str, list[str]]:
    """Why a ledger is there. `newer`: the bytes after it. `positions`: those of the cursors, sorted. `keeper`: an older one that stays."""
    assert observed.internal is not None
    if is_last:
        ended = observed.internal.text("state") == "Terminated"
        return "open", LAST_OF_TERMINATED if ended else WRITTEN_TO, []
    count = bisect_left(positions, (Position(id_, entries - 1), ""))
    if count:
        holders = {name: str(at) for at, name in positions[:count][:MOST_NAMED]}
        return "cursor", held_by(holders, count), [*holders]
    if keeper is not None:
        return "older ledger", goes_after(keeper), []
    whose = "" if positions else "no durable subscription holds it; "
    retention: Any = observed.policy("retention")
    if retention is None:
        return (
            "not known",
            f"{whose}consumed; whether retention keeps it is not known: that takes the policies",
            [],
        )
    minutes, megabytes = retention.value.retentionTimeInMinutes, retention.value.retentionSizeInMB
    level = f"(retention of the {retention.level})"
    if megabytes >= 0 and newer >= megabytes * MEGABYTE:
        return "not checked yet", f"{whose}may go (retention size), which the next check sees", []
    size = "and none of size" if megabytes < 0 else f"and {less_than(newer, megabytes)}"
    if minutes < 0:
        return "retention", f"{whose}consumed, but retention has no limit of time {size} {level}", []
    if minutes == 0:
        return "not checked yet", f"{whose}may go (retention time), which the next check sees", []
    return (
        "retention",
        f"{whose}consumed, but it goes only {minutes} min after it was closed, which the stats don't show, {size} {level}",
        [],
    )
