"""Who produces on a topic of a cluster, and why a producer does not get in, as far as stats show it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from schemas.commands import AccessMode
from streaming.answers.explain import advice
from streaming.answers.explain.stats.observed import Observed, ShownFields
from streaming.answers.explain.stats.storage import explain_quotas
from streaming.broker.config import ServiceConfiguration
from streaming.broker.dispatch.verdict import Verdict
from streaming.broker.names import REPLICATOR_PREFIX
from streaming.broker.persistent.cleanup.backlog_quota import blocking, evicts
from streaming.broker.policies.hierarchy import PublishRate, broker_publish_rate
from streaming.broker.producer.access_mode import Refusal, Situation, pass_gate
from streaming.broker.topic.producing import (
    ACCESS_MODES,
    Admission,
    ProducerState,
    Producing,
    access_of,
    fenced,
    max_producers,
    terminated,
)

_WRITES_FAILED = ("Fenced", "FencedForDeletion", "WriteFailed")
"""The states of a managed ledger that takes no writes."""


def explain_producers(observed: Observed) -> Producing:
    """Who has access to a topic, and what a new producer gets."""
    stats = observed.stats
    producers = [_producer(each) for each in stats.each("publishers")]
    waiting = stats.number("waitingPublishers")
    exclusive = [each for each in producers if each.access_mode in ACCESS_MODES[1:]]
    since = {each.name: (each.since or 0, number) for number, each in enumerate(exclusive)}
    owner = max(since, key=lambda name: since[name], default=None)
    found = Producing(
        observed.topic, observed.clock, owner, stats.number("topicEpoch"), producers, waiting or 0, [], []
    )
    limit = observed.policy("maxProducersPerTopic")
    count = sum(not each.name.startswith(REPLICATOR_PREFIX) for each in producers)
    if limit is not None and limit.value > 0:
        found.verdicts.append(max_producers(count, limit.value))
    state = None if observed.internal is None else observed.internal.text("state")
    if state == "Terminated":
        found.verdicts.append(terminated())
    if state in _WRITES_FAILED:
        found.verdicts.append(fenced())
    quotas = explain_quotas(observed)
    for each in blocking(quotas):
        # The age is that of the last check. The broker looks again when a producer comes.
        of_age = each.text.startswith("the message_age")
        found.verdicts.append(each._replace(blocks=False, sure=False) if of_age else each)
    found.slowest = quotas.slowest
    found.verdicts += _publish_rate(observed)
    if owner is not None or found.waiting:
        found.verdicts.append(access_of(owner, found.waiting, found.epoch, shared=bool(producers)))
    _admit(found, observed.config)
    if waiting is None:
        found.unknown.append(
            "whether producers wait for exclusive access: the stats of this version don't show it"
        )
    elif waiting:
        found.unknown.append(
            "who waits: the stats only count them. Their clients' create calls have not returned yet"
        )
    if observed.internal is None:
        found.unknown.append("whether the topic is terminated: that takes the internal stats")
    if observed.quota("destination_storage") is None:
        found.unknown.append("whether a backlog quota blocks producers or evicts: that takes the policies")
    age = quotas.quotas[1]
    if not evicts(age.policy) and (
        age.state == "within its limit" or (age.state == "not known" and age.limit > 0)
    ):
        found.unknown.append("whether the message_age quota was exceeded since the last check")
    if limit is None:
        found.unknown.append("how many producers the topic may have: that takes the policies")
    if observed.policy("publishRate") is None:
        found.unknown.append("the publish rate: that takes the policies")
    found.unknown.append(
        "whether the topic is fenced, a producer is closing, or one that is gone still has the access; who is refused or held, and who "
        "was fenced out; and schemas, encryption, and permissions of a new producer: the stats don't show them; the producer's own "
        "exception does"
    )
    found.to_do = advice.of_producers(found)
    return found


def _publish_rate(observed: Observed) -> Iterator[Verdict]:
    """What slows producers, as far as the stats count it."""
    times, limit = observed.stats.number("publishRateLimitedTimes"), _limit(observed)
    whose = "" if limit in (None, _NO_LIMIT) else f"the limit is {limit}"
    if times:
        text = f"publishing was throttled {times} times in the last interval of the stats"
        if limit == _NO_LIMIT:
            whose = "no rate limits this topic, so it was that of another topic on the same connection"
        yield Verdict("publishRate", False, f"{text}; {whose}" if whose else text, sure=False)
    elif whose:
        counted = "whether it slows a producer the stats of this version don't show"
        if times is not None:
            counted = "it slowed no producer in the last interval of the stats"
        yield Verdict("publishRate", False, f"{whose}; {counted}", sure=times is not None)


_NO_LIMIT = "no limit"


def _limit(observed: Observed) -> str | None:
    """The publish rate that holds for a topic, and who sets it. None: it is not known."""
    found = observed.policy("publishRate")
    if found is not None and found.value.limits:
        return f"{_shown(found.value)} ({found.level})"
    if found is None or observed.config is None:
        return None
    of_all = broker_publish_rate(observed.config)
    return _NO_LIMIT if of_all is None else f"{_shown(of_all)} (all topics of the broker together)"


def _shown(rate: PublishRate) -> str:
    limits = ((rate.publishThrottlingRateInMsg, "messages"), (rate.publishThrottlingRateInByte, "bytes"))
    return " and ".join(f"{limit} {unit}/s" for limit, unit in limits if limit > 0)


def _producer(shown: ShownFields) -> ProducerState:
    limited = shown.flag("isThrottled")
    return ProducerState(
        shown.text("producerName") or "",
        shown.text("accessMode") or "not known",
        "connected",
        (shown.text("address") or "").lstrip("/"),
        f"publishes {shown.rate('msgRateIn') or 0:g} messages/s" + (", throttled" if limited else ""),
        _since(shown.text("connectedSince")),
    )


def _since(text: str | None) -> int | None:
    try:
        return None if text is None else int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _admit(found: Producing, config: ServiceConfiguration | None) -> None:
    """What a new producer with each access mode gets, in the order of the broker's steps (docs/rules/producers.md §1)."""
    deciders = {each.decider: each for each in reversed(found.verdicts) if each.blocks}
    refusal = next((deciders[each] for each in _BEFORE_THE_GATE if each in deciders), None)
    behind = next((deciders[each] for each in _BEHIND_THE_GATE if each in deciders), None)
    perhaps = next(
        (each for each in found.verdicts if not each.sure and each.decider == "backlogQuota"), None
    )
    situations: set[Situation] = {"producers"} if found.producers else set()
    if found.owner is not None:
        situations.add("owner")
    if found.waiting:
        situations.add("waiting")
    for mode in ACCESS_MODES:
        if refusal is not None:
            found.admissions.append(_refused(mode, refusal))
            continue
        if perhaps is not None:
            text = f"refused with {_error(perhaps)} if the quota is still exceeded"
            found.admissions.append(Admission(mode, "not known", None, text))
            continue
        verdict = pass_gate(mode, situations)
        if isinstance(verdict, Refusal):
            text = verdict.cause.format(owner=found.owner)
            found.admissions.append(Admission(mode, "is refused", verdict.error, text))
        elif verdict == "wait":
            found.admissions.append(Admission(mode, "waits"))
        elif behind is not None:
            found.admissions.append(_refused(mode, behind))
        elif verdict == "fence" and config is not None and config.profile in _WITHOUT_FENCING:
            text = "2.10 takes this mode for Shared, so it fences nobody out"
            found.admissions.append(Admission(mode, "not known", None, text))
        elif verdict == "fence":
            gone = ", ".join(each.name for each in found.producers) or "nobody"
            queue = f" and {found.waiting} that wait" if found.waiting else ""
            found.admissions.append(Admission(mode, "fences", None, f"fences out {gone}{queue}"))
        else:
            found.admissions.append(Admission(mode, "gets in"))


_BEFORE_THE_GATE = ("maxProducersPerTopic", "backlogQuota")
_BEHIND_THE_GATE = ("fenced", "terminated")
"""The deciders that refuse a producer before and after the gate of the access modes, each in the order of the broker's steps."""
_WITHOUT_FENCING = ("2.x", "2.10")
"""The profiles of brokers that don't know ExclusiveWithFencing, or may not: 2.10 stands in for 2.11."""


def _refused(mode: AccessMode, refusal: Verdict) -> Admission:
    return Admission(mode, "is refused", _error(refusal), refusal.text.partition(" (")[0])


def _error(refusal: Verdict) -> str | None:
    """The error that a producer gets."""
    if refusal.decider == "backlogQuota":
        held = "producer_request_hold" in refusal.text
        return f"ProducerBlockedQuotaExceeded{'Error' if held else 'Exception'}"
    return _ERRORS.get(refusal.decider)


_ERRORS = {
    "terminated": "TopicTerminatedError", "fenced": "ServiceNotReady", "maxProducersPerTopic": "ProducerBusy",
}  # fmt: skip
"""The error of a refusal by its decider."""
