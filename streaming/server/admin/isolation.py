"""Which namespaces isolation policies give to a broker (mirrors `ClustersBase.internalGetBrokerNsIsolationData`)."""

from typing import Any

from streaming.protocol.frames import matches
from streaming.server.clients import Json


def of_broker(broker: str, policies: Json) -> Json:
    """What the policies of a cluster, by name, say about a broker. Each has lists of patterns. quirk: of several policies, the last one
    is named."""
    found: Json = {"brokerName": broker, "namespaceRegex": [], "primary": False}
    for name, policy in policies.items():
        primary = _is_one(broker, policy.get("primary"))
        if primary or _is_one(broker, policy.get("secondary")):
            regexes = [*found["namespaceRegex"], *policy["namespaces"]]
            found |= {"policyName": name, "namespaceRegex": regexes, "primary": primary}
    return found


def _is_one(broker: str, patterns: Any) -> bool:
    return isinstance(patterns, list) and any(_matches(str(pattern), broker) for pattern in patterns)


def _matches(pattern: str, broker: str) -> bool:
    try:
        return (matches(pattern, [broker]) or [False])[0]
    except ValueError:
        return False
