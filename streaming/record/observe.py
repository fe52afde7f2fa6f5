"""What a cluster's admin API shows of a topic now, for `magnetar explain --admin-url`. Only GETs: nothing changes, and no topic is
created."""

from http import HTTPStatus
from typing import Any

from streaming.answers.explain.stats.observed import (
    TOPIC_POLICIES,
    Observed,
    ShownFields,
    policies_of_namespace,
    policies_of_topic,
    stats_of,
)
from streaming.answers.history.folders import NotFound, listed
from streaming.broker.admin_requests import topic_path
from streaming.broker.config import ServiceConfiguration, configuration
from streaming.broker.context import namespace_of
from streaming.broker.names import base_of, complete, partitions_of, whole_of
from streaming.broker.policies.hierarchy import Policies
from streaming.record.policies import settings_of
from streaming.record.rest import DENIED, CallFailed, Rest, check_partitions

_UNSET = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.PRECONDITION_FAILED)
"""The statuses of a policy that a broker does not have."""

_STATS = "getPreciseBacklog=true&subscriptionBacklogSize=true"
_OLDEST = "&getEarliestTimeInBacklog=true"
"""The broker reads an entry for each subscription."""

MOST_READ = 1000
"""With more subscriptions, their oldest messages are not asked for."""
MOST_PARTITIONS = 100
"""Of so many partitions, internal stats are asked for at most: those with the largest backlogs."""


def observe(rest: Rest, given: str, now: int, *, oldest: bool = False) -> tuple[str, list[Observed], int]:
    """A topic's full name, what is known of it or of its partitions at `now` (ms), and the number of partitions (0: it is not
    partitioned). `oldest`: ask for the age of each subscription's oldest message.

    Raises `NotFound` for a topic that is not there, and `CallFailed` if its stats are not to be had.
    """
    topic = complete(given)
    if not topic.startswith("persistent://"):
        raise NotFound(f"{topic} is not persistent: it keeps neither messages nor backlogs")
    path = topic_path(topic)
    shown = ShownFields(_of_topic(rest, topic, f"{path}/partitions"))
    partitions = check_partitions(f"{path}/partitions", shown.number("partitions") or 0)
    stats = _stats(rest, topic, path, partitions)
    if oldest and sum(len(_subscriptions(each)) for each in stats.values()) <= MOST_READ:
        stats = _stats(rest, topic, path, partitions, _OLDEST)
    missing: list[str] = []
    internal = _internal(rest, stats, missing)
    if partitions > len(stats):
        missing.append(f"{partitions - len(stats)} of {partitions} partitions, of which there are no stats")
    config = _settings(rest, missing)
    namespace = _of_namespace(rest, topic, missing)
    own = _own(rest, topic_path(base_of(topic)), config or ServiceConfiguration(), missing)
    return (
        topic,
        [
            Observed(name, now, _shown(name, shown), internal.get(name), own, namespace, config, missing)
            for name, shown in stats.items()
        ],
        partitions,
    )


def _shown(topic: str, stats: Any) -> ShownFields:
    try:
        return stats_of(stats)
    except ValueError as error:
        raise CallFailed(f"the stats of {topic} are not those of a Pulsar: {error}") from None


def _stats(rest: Rest, topic: str, path: str, partitions: int, more: str = "") -> dict[str, Any]:
    """The stats of a topic, or of its partitions, by name."""
    if not partitions:
        return {topic: _of_topic(rest, topic, f"{path}/stats?{_STATS}{more}")}
    whole = _of_topic(rest, topic, f"{path}/partitioned-stats?perPartition=true&{_STATS}{more}")
    shown = whole.get("partitions")
    names = partitions_of(topic, partitions) if isinstance(shown, dict) else ()
    found = {name: shown[name] for name in names if name in shown}
    if not found:
        raise CallFailed(
            f"{topic} has {partitions} partitions, and the cluster shows no stats of any of them"
        )
    return found


def _of_topic(rest: Rest, topic: str, path: str) -> Any:
    """A response about a topic, which is JSON. Raises `NotFound`, `CallFailed`."""
    status, value = rest.call("GET", path)
    shown = path.partition("?")[0]
    if status == HTTPStatus.NOT_FOUND and isinstance(value, dict):
        raise NotFound(_not_there(rest, topic, value))
    if status in DENIED:
        raise CallFailed(
            f"GET {shown}: {status}: the cluster refuses it: give a token that may read the topic's stats with --token-file",
            status,
        )
    if status >= HTTPStatus.BAD_REQUEST and isinstance(value, dict):
        raise CallFailed(f"GET {shown}: {status} {value.get('reason', '')}".rstrip(), status)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise CallFailed(f"GET {shown}: {status}, and no reason", status)
    if not isinstance(value, dict):
        raise CallFailed(
            f"{rest.url} answers GET {shown} with {status} and no JSON: is it the admin API? Give the URL of a broker or a proxy, such as "
            "http://localhost:8080",
            status,
        )
    return value


def _not_there(rest: Rest, topic: str, value: dict[str, Any]) -> str:
    """That a topic is not there, and which ones are."""
    namespace = namespace_of(topic)
    names: dict[str, None] = {}
    for path in (f"/persistent/{namespace}/partitioned", f"/persistent/{namespace}"):
        status, found = rest.call("GET", path)
        if status >= HTTPStatus.BAD_REQUEST or not isinstance(found, list):
            reason = ShownFields(value).text("reason")
            return f"there is no topic {topic}" + (f": {reason}" if reason else "")
        names |= {each: None for each in map(str, found) if whole_of(each) not in names}
    return f"there is no topic {topic}: {listed('topic', topic, names)}"


def _subscriptions(stats: Any) -> dict[str, ShownFields]:
    return dict(ShownFields(stats).items("subscriptions"))


def _internal(rest: Rest, stats: dict[str, Any], missing: list[str]) -> dict[str, ShownFields]:
    """The internal stats by topic; of many partitions, of those with the largest backlogs."""

    def backlog(name: str) -> int:
        return sum(sub.number("msgBacklog") or 0 for sub in _subscriptions(stats[name]).values())

    names = sorted(stats, key=lambda name: -backlog(name))
    if len(names) > MOST_PARTITIONS:
        missing.append(
            f"the internal stats of all but {MOST_PARTITIONS} partitions, those with the largest backlogs"
        )
    found = {}
    for name in names[:MOST_PARTITIONS]:
        status, value = rest.call("GET", f"{topic_path(name)}/internalStats")
        if status < HTTPStatus.BAD_REQUEST and isinstance(value, dict):
            found[name] = ShownFields(value)
            continue
        missing.append(
            f"the internal stats{'' if status in DENIED else f' of {name}'}: {_why(status, value)}"
        )
        if status in DENIED:
            break
    return found


def _why(status: int, value: Any) -> str:
    if status in DENIED:
        return f"{status}: the token may not read them"
    reason = ShownFields(value).text("reason")
    return f"{status} {reason or ''}".rstrip()


def _settings(rest: Rest, missing: list[str]) -> ServiceConfiguration | None:
    try:
        found = settings_of(rest)
    except CallFailed as error:
        why = _why(error.status, None) if error.status in DENIED else str(error)
        missing.append(f"the broker's settings: {why}")
        return None
    except (AttributeError, TypeError):  # they are no object of texts
        missing.append("the broker's settings: what the cluster shows is not understood")
        return None
    return configuration(found.profile, found.settings)


def _of_namespace(rest: Rest, topic: str, missing: list[str]) -> Policies | None:
    status, value = rest.call("GET", f"/namespaces/{'/'.join(topic.split('/')[2:4])}")
    if status >= HTTPStatus.BAD_REQUEST or not isinstance(value, dict):
        missing.append(f"the policies of the namespace: {_why(status, value)}")
        return None
    found, refused = policies_of_namespace(value)
    missing += refused
    return found


def _own(rest: Rest, path: str, config: ServiceConfiguration, missing: list[str]) -> Policies | None:
    shown = {}
    for call in TOPIC_POLICIES:
        status, value = rest.call("GET", f"{path}/{call}")
        if status < HTTPStatus.BAD_REQUEST:
            shown[call] = value
        elif status not in _UNSET:
            missing.append(f"the policies of the topic: {_why(status, value)}")
            return None
    found, refused = policies_of_topic(shown, config)
    missing += refused
    return found
