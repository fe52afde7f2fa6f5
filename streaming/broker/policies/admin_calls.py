"""Admin calls that read, set and remove the policies of a namespace or a topic (I1)."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_args
from urllib.parse import unquote

import msgspec

from schemas.commands import Admin, SubType
from schemas.units import Int32, Messages, unit
from streaming.broker.admin_table import NAMESPACE, TOPIC, Call, Table
from streaming.broker.config import (
    InactiveTopicDeleteMode,
    SchemaCompatibilityStrategy,
    ServiceConfiguration,
)
from streaming.broker.errors import AdminError
from streaming.broker.parameters import INT, query, read_number
from streaming.broker.policies.arguments import convert, is_applied
from streaming.broker.policies.hierarchy import (
    AutoSubscriptionCreationOverride,
    AutoTopicCreationOverride,
    BacklogQuota,
    DelayedDeliveryPolicies,
    DispatchRate,
    InactiveTopicPolicies,
    PersistencePolicies,
    Policies,
    PublishRate,
    QuotaType,
    RetentionPolicies,
    SubscribeRate,
    broker_level,
    default_quota,
    effective,
)
from streaming.broker.policies.kept import KEPT, get_kept, set_kept

POLICY_CALLS: dict[str, tuple[str, Any]] = {
    "messageTTL": ("messageTTL", Annotated[Int32, unit("s")]),
    "retention": ("retention", RetentionPolicies),
    "deduplication": ("deduplication", bool),
    "deduplicationEnabled": ("deduplication", bool),
    "deduplicationSnapshotInterval": ("deduplicationSnapshotInterval", Annotated[Int32, unit("s")]),
    "maxTopicsPerNamespace": ("maxTopicsPerNamespace", Annotated[Int32, unit("topics")]),
    "maxProducersPerTopic": ("maxProducersPerTopic", Annotated[Int32, unit("producers")]),
    "maxProducers": ("maxProducersPerTopic", Annotated[Int32, unit("producers")]),
    "maxConsumersPerTopic": ("maxConsumersPerTopic", Annotated[Int32, unit("consumers")]),
    "maxConsumers": ("maxConsumersPerTopic", Annotated[Int32, unit("consumers")]),
    "maxConsumersPerSubscription": ("maxConsumersPerSubscription", Annotated[Int32, unit("consumers")]),
    "maxSubscriptionsPerTopic": ("maxSubscriptionsPerTopic", Annotated[Int32, unit("subscriptions")]),
    "maxUnackedMessagesPerConsumer": ("maxUnackedMessagesPerConsumer", Messages),
    "maxUnackedMessagesOnConsumer": ("maxUnackedMessagesPerConsumer", Messages),
    "maxUnackedMessagesPerSubscription": ("maxUnackedMessagesPerSubscription", Messages),
    "maxUnackedMessagesOnSubscription": ("maxUnackedMessagesPerSubscription", Messages),
    "maxMessageSize": ("maxMessageSize", Annotated[Int32, unit("bytes")]),
    "encryptionRequired": ("encryptionRequired", bool),
    "subscriptionExpirationTime": ("subscriptionExpirationTime", Annotated[Int32, unit("min")]),
    "dispatchRate": ("dispatchRate", DispatchRate),
    "subscriptionDispatchRate": ("subscriptionDispatchRate", DispatchRate),
    "publishRate": ("publishRate", PublishRate),
    "subscribeRate": ("subscribeRate", SubscribeRate),
    "delayedDelivery": ("delayedDelivery", DelayedDeliveryPolicies | None),
    "subscriptionTypesEnabled": ("subscriptionTypesEnabled", list[SubType]),
    "autoTopicCreation": ("autoTopicCreation", AutoTopicCreationOverride | None),
    "autoSubscriptionCreation": ("autoSubscriptionCreation", AutoSubscriptionCreationOverride | None),
    "inactiveTopicPolicies": ("inactiveTopicPolicies", InactiveTopicPolicies | None),
    "schemaCompatibilityStrategy": ("schemaCompatibilityStrategy", SchemaCompatibilityStrategy | None),
    "schemaValidationEnforced": ("schemaValidationEnforced", bool),
    "isAllowAutoUpdateSchema": ("isAllowAutoUpdateSchema", bool),
    "persistence": ("persistence", PersistencePolicies | None),
}
"""Path element → policy and its type. Some policies have one name for namespaces and another for topics."""

_UNSET_OF_NAMESPACE: dict[str, tuple[int, Any]] = {
    "encryptionRequired": (200, False),
    "maxTopicsPerNamespace": (200, 0),
    "subscriptionTypesEnabled": (200, []),
    "schemaCompatibilityStrategy": (200, "UNDEFINED"),
    "schemaValidationEnforced": (200, False),
    "isAllowAutoUpdateSchema": (200, True),
}
_UNSET_OF_TOPIC: dict[str, tuple[int, Any]] = {
    "maxConsumersPerSubscription": (204, None),
    "maxSubscriptionsPerTopic": (204, None),
    "maxMessageSize": (204, None),
    "publishRate": (204, None),
    "schemaValidationEnforced": (200, False),
}
"""quirk: the answers to GET of a policy that is not set, where they are not 200 without a body."""

_SUBSCRIPTION_RATE = re.compile(r"(?P<name>[^/]+)/dispatchRate")

ALL_POLICIES = "policies"
"""The call that removes all policies of a topic."""

QUOTA_TYPES: tuple[QuotaType, ...] = get_args(QuotaType)


def policy_of(call: str, path: str) -> str | None:
    """The policy that a call sets or removes, whichever name the call gives it; a quota with its type. None: it is another
    call. `call` is the path's element for the policy."""
    if call == "backlogQuota":
        return f"{call} {query(path).get('backlogQuotaType', QUOTA_TYPES[0])}"
    if (subscription := rated_subscription(call)) is not None:
        return f"subscriptionDispatchRates {subscription}"
    if call in KEPT:
        return call
    return POLICY_CALLS[call][0] if call in POLICY_CALLS else None


OTHER_FIELDS: dict[Any, dict[str, str]] = {
    BacklogQuota: {"limit": "What older clients call `limitSize`."},
    PersistencePolicies: {"managedLedgerStorageClassName": "No effect here."},
}
"""Fields that Pulsar's objects have besides those of a policy's type, and what they are."""


def unknown_fields(call: str, body: Any) -> list[str]:
    """The fields of the body of a call on a policy that no release of Pulsar has. A broker ignores them."""
    quota_or_rate = BacklogQuota if call == "backlogQuota" else DispatchRate
    type_ = POLICY_CALLS[call][1] if call in POLICY_CALLS else quota_or_rate
    types = [each for each in (type_, *get_args(type_)) if getattr(each, "__struct_fields__", ())]
    known = [name for each in types for name in (*each.__struct_fields__, *OTHER_FIELDS.get(each, {}))]
    return [name for name in body if name not in known] if known and isinstance(body, dict) else []


def is_policy(call: str) -> bool:
    """Whether a path below a namespace is that of a policy."""
    return call in POLICY_CALLS or call in KEPT or call in ("backlogQuota", "backlogQuotaMap")


def rated_subscription(call: str) -> str | None:
    """The subscription whose dispatch rate a call on a topic is about, or None."""
    found = _SUBSCRIPTION_RATE.fullmatch(call)
    return None if found is None else unquote(found["name"])


def call_subscription_rate(
    policies: Policies, command: Admin, subscription: str, lower: "LowerLevels"
) -> tuple[int, Any]:
    """Answer a call on the dispatch rate that a topic sets for one subscription. Raises `AdminError` for a bad value."""
    rates = policies.subscriptionDispatchRates
    if command.method == "GET":
        rate = rates.get(subscription)
        if rate is None and is_applied(command):
            rate = lower.find(policies, "subscriptionDispatchRate", command)
        return 200, msgspec.to_builtins(rate)
    if command.method == "DELETE":
        policies.subscriptionDispatchRates = {name: rates[name] for name in rates if name != subscription}
    else:
        rate = convert(command.body, DispatchRate)
        if rate.limits:  # quirk: Pulsar ignores any other, so that no policy changes
            policies.subscriptionDispatchRates = {**rates, subscription: rate}
    return 204, None


def quota_map(quotas: dict[QuotaType, BacklogQuota]) -> dict[str, Any]:
    """The quotas by type. Older clients know `limitSize` as `limit`."""
    return {
        type_: {"limit": quota.limitSize, **msgspec.to_builtins(quota)} for type_, quota in quotas.items()
    }


def get_policy(
    policies: Policies, command: Admin, name: str, lower: "LowerLevels | None" = None
) -> tuple[int, Any] | None:
    """The answer to GET of a policy: its value at this level, or no body if it is not set. None: this is another call.

    `lower`: the levels below a topic, None for the policies of a namespace.
    """
    if command.method != "GET":
        return None
    if name in KEPT:
        if lower is None:
            return get_kept(policies, name, command, None)
        return get_kept(policies, name, command, lower.config, lower.namespace)
    if name != "backlogQuotaMap" and name not in POLICY_CALLS:
        return None
    field = "backlogQuota" if name == "backlogQuotaMap" else POLICY_CALLS[name][0]
    value = getattr(policies, field) if lower is None else lower.find(policies, field, command)
    if field == "backlogQuota":
        return 200, quota_map(value)
    if value is not None:
        return 200, msgspec.to_builtins(value)
    if lower is None:
        return _UNSET_OF_NAMESPACE.get(field, (200, None))
    if field == "subscriptionTypesEnabled":  # quirk: the other policies of the topic count
        return (204, None) if policies == Policies() else (200, [])
    return _UNSET_OF_TOPIC.get(field, (200, None))


def set_policy(
    policies: Policies,
    command: Admin,
    name: str,
    config: ServiceConfiguration,
    lower: "LowerLevels | None" = None,
) -> bool:
    """Set (POST, PUT) or remove (DELETE) a policy. False: this is another call. Raises `AdminError` for a bad value.

    `lower`: the levels below a topic, None for the policies of a namespace.
    """
    if command.method == "GET":
        return False
    check = RetentionCheck(default_quota(config), None if lower is None else lower.namespace)
    if name == "backlogQuota":
        wanted = query(command.path).get("backlogQuotaType", QUOTA_TYPES[0])
        quota_type = next((known for known in QUOTA_TYPES if known == wanted), None)
        if quota_type is None:
            raise AdminError(404, f"unknown backlogQuotaType {wanted}: use one of {', '.join(QUOTA_TYPES)}")
        if command.method == "DELETE":
            policies.backlogQuota.pop(quota_type, None)
        else:
            quota = convert(with_limit_size(command.body), BacklogQuota)
            check.quota(policies, quota_type, quota)
            policies.backlogQuota = {**policies.backlogQuota, quota_type: quota}
        return True
    if name == ALL_POLICIES:
        if command.method != "DELETE":
            return False
        for field, default in msgspec.structs.asdict(Policies()).items():
            setattr(policies, field, default)
        return True
    if name in KEPT:
        set_kept(policies, name, command, of_topic=lower is not None)
        return True
    if name not in POLICY_CALLS:
        return False
    field, type_ = POLICY_CALLS[name]
    if command.method == "DELETE":
        # quirk: a topic that had types has a list without any
        setattr(policies, field, [] if field == "subscriptionTypesEnabled" else None)
        return True
    given = query(command.path)
    # quirk: two policies are query parameters of a topic, and bodies of a namespace
    in_path = name in _PARAMETERS_OF_TOPIC and name in given
    body = read_number(given[name], INT, boxed=True) if in_path else command.body
    removes = _OBJECTS_OF_NAMESPACE if lower is None else _OBJECTS_OF_TOPIC
    if body is None and (type_ in _OBJECTS or name in removes):
        setattr(policies, field, None)
        return True
    if field == "schemaCompatibilityStrategy" and body not in get_args(SchemaCompatibilityStrategy):
        body = "UNDEFINED"  # quirk: Pulsar takes any other text for this
    if field == "inactiveTopicPolicies":
        body = with_known_mode(body)
    value = convert(body, type_)
    reasons = _NOT_NEGATIVE if lower is None else _NOT_NEGATIVE | _NOT_NEGATIVE_OF_TOPIC
    if isinstance(value, int) and value < 0 and (reason := reasons.get(field)) is not None:
        raise AdminError(412, reason.format(name=name))
    if field == "maxMessageSize" and value > config.maxMessageSize:
        raise AdminError(412, _MESSAGE_SIZE)
    if isinstance(value, RetentionPolicies):
        check_retention(value)
        check.retention(policies, value)
    if field == "persistence":
        check_persistence(value)
    if isinstance(value, AutoTopicCreationOverride):
        _check_auto_topic_creation(value, config)
    setattr(policies, field, value)
    return True


def _check_auto_topic_creation(value: AutoTopicCreationOverride, config: ServiceConfiguration) -> None:
    partitions, reason = value.defaultNumPartitions, ""
    if not value.allowAutoTopicCreation:
        return
    if value.topicType not in ("partitioned", "non-partitioned"):
        reason = f"Unknown topic type [{value.topicType or 'null'}]"
    elif value.topicType == "non-partitioned":
        if partitions is not None:
            reason = "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    elif partitions is None:
        reason = "[defaultNumPartitions] cannot be null when the type is partitioned."
    elif partitions < 1:
        reason = "[defaultNumPartitions] cannot be less than 1 for partition type."
    elif partitions > (most := config.most_partitions):
        raise AdminError(406, f"Number of partitions should be less than or equal to {most}")
    if reason:
        raise AdminError(412, f"Invalid configuration for autoTopicCreationOverride. the detail is {reason}")


_OBJECTS = (RetentionPolicies, DispatchRate, PublishRate, SubscribeRate)
_PARAMETERS_OF_TOPIC = ("messageTTL", "subscriptionExpirationTime")
_OBJECTS_OF_TOPIC = ("deduplicationEnabled", *_PARAMETERS_OF_TOPIC)
_OBJECTS_OF_NAMESPACE = ("deduplicationSnapshotInterval",)
"""Policies that a call without a value removes. Of other types, or at the other level, it is refused."""

_NOT_NEGATIVE = {
    "messageTTL": "Invalid value for message TTL, message TTL must >= 0",
    "subscriptionExpirationTime": "Invalid value for subscription expiration time",
    "deduplicationSnapshotInterval": "interval must be greater than or equal to 0",
    **{
        field: "{name} must be 0 or more" for field, type_ in POLICY_CALLS.values() if field.startswith("max")
    },
}
"""Policies that must not be negative, with the reason that a negative one is refused with."""

_MESSAGE_SIZE = "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level"

_NOT_NEGATIVE_OF_TOPIC = {
    "messageTTL": "Invalid value for message TTL",
    "maxConsumersPerSubscription": "Invalid value for maxConsumersPerSubscription",
    "maxUnackedMessagesPerConsumer": "maxUnackedNum must be 0 or more",
    "maxUnackedMessagesPerSubscription": "maxUnackedNum must be 0 or more",
    "maxMessageSize": _MESSAGE_SIZE,
    "deduplicationSnapshotInterval": "interval must be 0 or more",
}
"""The same for a topic, where that differs."""


def with_limit_size(body: Any) -> Any:
    """A quota in the body of a call: older clients call its `limitSize` `limit`."""
    if not isinstance(body, dict) or "limit" not in body:
        return body
    limit = body["limit"]
    return {"limitSize": limit} | {name: value for name, value in body.items() if name != "limit"}


def with_known_mode(body: Any) -> Any:
    """quirk: Pulsar takes a mode that it does not know for none."""
    if isinstance(body, dict) and body.get("inactiveTopicDeleteMode") not in get_args(
        InactiveTopicDeleteMode
    ):
        return {name: value for name, value in body.items() if name != "inactiveTopicDeleteMode"}
    return body


def check_retention(retention: RetentionPolicies) -> None:
    """Refuse a retention that limits one of time and size, and turns the other off. Raises `AdminError`."""
    time, size = retention.retentionTimeInMinutes, retention.retentionSizeInMB
    if time < -1 or size < -1 or (time == 0) != (size == 0):
        raise AdminError(
            400,
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a non-zero "
            "value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits must be set to 0.",
        )


_MOST_BOOKIES: Int32 = 5


def check_persistence(value: PersistencePolicies | None) -> None:
    """Refuse numbers of bookies that no cluster has. Raises `AdminError`."""
    if value is None:
        raise AdminError(400, "persistence policies should not be null")
    ensemble, write, ack = value.bookkeeperEnsemble, value.bookkeeperWriteQuorum, value.bookkeeperAckQuorum
    for name, number in (("Ensemble", ensemble), ("WriteQuorum", write), ("AckQuorum", ack)):
        if not 0 < number <= _MOST_BOOKIES:
            raise AdminError(400, f"Bookkeeper-{name} must be <= {_MOST_BOOKIES} and > 0.")
    if not ensemble >= write >= ack:
        raise AdminError(
            400, f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})"
        )


class LowerLevels(NamedTuple):
    """What holds for a topic that does not set a policy: that of its `namespace`, then that of the broker."""

    namespace: Policies
    config: ServiceConfiguration

    def find(self, policies: Policies, field: str, command: Admin) -> Any:
        """The value of a policy of the topic's `policies`. With `?applied=true`, that of the first level that sets it, for
        the policies for which Pulsar has this parameter."""
        if field == "schemaCompatibilityStrategy" and is_applied(command):
            return effective(field, policies, self.namespace, self.config).value
        value = getattr(policies, field)
        broker = getattr(broker_level(self.config), field)
        if value not in (None, {}) or broker is None or not is_applied(command):
            return value
        namespace = getattr(self.namespace, field)
        return broker if namespace in (None, {}) else namespace


class RetentionCheck(msgspec.Struct, frozen=True):
    """Refuses quotas that are not below the retention (docs/rules/quotas.md §9), as one level does it in 4.0.7.

    A namespace checks its quota on size alone; a quota that is not set counts as the `default` of the broker. A topic checks
    both types. Its retention is that of its `namespace` if it has none of its own. The methods raise `AdminError`.
    """

    default: BacklogQuota
    namespace: Policies | None = None
    """The policies of the topic's namespace. None: the level is a namespace."""

    def quota(self, policies: Policies, type_: QuotaType, quota: BacklogQuota) -> None:
        """Check a new quota."""
        retention = policies.retention
        if self.namespace is None:
            quota = quota if type_ == "destination_storage" else self.default
        elif retention is None:
            retention = self.namespace.retention
        if retention is not None:
            reason = f"Backlog Quota exceeds configured retention quota for {self._level}. {_INCREASE}"
            _check_quota(quota, retention, reason)

    def retention(self, policies: Policies, retention: RetentionPolicies) -> None:
        """Check a new retention."""
        quotas = policies.backlogQuota
        if self.namespace is None and not quotas:
            return
        for type_ in QUOTA_TYPES if self.namespace is not None else QUOTA_TYPES[:1]:
            reason = f"Retention Quota must exceed configured backlog quota for {self._level}."
            if self.namespace is not None:
                reason = f"{reason} {_INCREASE}"
            _check_quota(quotas.get(type_, self.default), retention, reason)

    @property
    def _level(self) -> str:
        return "namespace" if self.namespace is None else "topic"


_INCREASE = "Please increase retention quota and retry"


def _check_quota(quota: BacklogQuota, retention: RetentionPolicies, reason: str) -> None:
    time, size = retention.retentionTimeInMinutes, retention.retentionSizeInMB
    if (size > 0 and quota.limitSize >= size * 1024 * 1024) or (time > 0 and quota.limitTime >= time * 60):
        raise AdminError(412, reason)


# -- the table ----------------------------------------------------------------------------------------------------

NAMESPACE_POLICIES = (
    "messageTTL", "retention", "backlogQuota", "deduplication", "deduplicationSnapshotInterval", "maxTopicsPerNamespace",
    "maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription", "maxSubscriptionsPerTopic",
    "maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription", "encryptionRequired",
    "subscriptionExpirationTime", "dispatchRate", "subscriptionDispatchRate", "publishRate", "subscribeRate",
    "delayedDelivery", "subscriptionTypesEnabled", "autoTopicCreation", "autoSubscriptionCreation",
    "inactiveTopicPolicies", "persistence", "persistence/bookieAffinity", "antiAffinity", "replicatorDispatchRate",
    "dispatcherPauseOnAckStatePersistent", "entryFilters", "allowedTopicPropertyKeysForMetrics",
)  # fmt: skip

TOPIC_POLICIES = (
    "messageTTL", "retention", "backlogQuota", "deduplicationEnabled", "deduplicationSnapshotInterval", "maxProducers",
    "maxConsumers", "maxConsumersPerSubscription", "maxSubscriptionsPerTopic", "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription", "maxMessageSize", "dispatchRate", "subscriptionDispatchRate", "publishRate",
    "subscribeRate", "delayedDelivery", "subscriptionTypesEnabled", "subscriptionExpirationTime", "autoSubscriptionCreation",
    "inactiveTopicPolicies", "persistence", "compactionThreshold", "replication", "replicatorDispatchRate", "offloadPolicies",
    "dispatcherPauseOnAckStatePersistent", "entryFilters",
)  # fmt: skip

_FURTHER_OF_NAMESPACE = {
    "schemaCompatibilityStrategy": ("GET", "PUT"), "schemaAutoUpdateCompatibilityStrategy": ("GET", "PUT"),
    "schemaValidationEnforced": ("GET", "POST"), "isAllowAutoUpdateSchema": ("GET", "POST"),
    "subscriptionAuthMode": ("GET", "POST"), "compactionThreshold": ("GET", "PUT", "DELETE"), "offloadThreshold": ("GET", "PUT"),
    "offloadThresholdInSeconds": ("GET", "PUT"), "offloadDeletionLagMs": ("GET", "PUT", "DELETE"),
    "offloadPolicies": ("GET", "POST"), "removeOffloadPolicies": ("DELETE",),
}  # fmt: skip

_FURTHER_OF_TOPIC = {
    ALL_POLICIES: ("DELETE",), "schemaCompatibilityStrategy": ("GET", "PUT", "DELETE"), "shadowTopics": ("GET", "PUT", "DELETE"),
    "schemaValidationEnforced": ("GET", "POST"),
}  # fmt: skip
"""Policy → its methods, if these are not GET, POST and DELETE."""


def _calls(policies: tuple[str, ...], further: dict[str, tuple[str, ...]]) -> Iterator[Call[Any]]:
    for name, methods in {**dict.fromkeys(policies, ("GET", "POST", "DELETE")), **further}.items():
        for method in methods:
            if method != "GET":
                yield Call(method, f"/{name}", set_policy)
            else:
                yield Call(method, "/backlogQuotaMap" if name == "backlogQuota" else f"/{name}", get_policy)


NAMESPACE_CALLS: Table[Any] = Table(NAMESPACE, _calls(NAMESPACE_POLICIES, _FURTHER_OF_NAMESPACE))
TOPIC_CALLS: Table[Any] = Table(
    TOPIC,
    (
        *_calls(TOPIC_POLICIES, _FURTHER_OF_TOPIC),
        *(
            Call(method, "/{subscription}/dispatchRate", call_subscription_rate, "each")
            for method in ("GET", "POST", "DELETE")
        ),
    ),
)
"""The calls that Pulsar has on policies. A command may name any policy at either level, and may set it with POST or PUT."""
