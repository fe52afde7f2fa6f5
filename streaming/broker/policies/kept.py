"""Policies that are kept and returned but have no effect: what they govern does not exist here.

They concern bookies, bundles, replication, offloading, and authorization. dispatcherPauseOnAckStatePersistent is one of them,
too: no delivery pauses here because more acks wait to be written than managedLedgerMaxUnackedRangesToPersist. Two have an effect,
`hierarchy.AUTO_UPDATE` and `hierarchy.COMPACTION_THRESHOLD`.
"""

from typing import Annotated, Any, NamedTuple

import msgspec

from schemas.commands import Admin
from schemas.units import Int64, unit
from streaming.broker import entry_filters
from streaming.broker.config import ServiceConfiguration
from streaming.broker.errors import AdminError
from streaming.broker.names import CLUSTER
from streaming.broker.policies.arguments import convert, is_applied
from streaming.broker.policies.hierarchy import (
    AUTO_UPDATE,
    AUTO_UPDATE_STRATEGIES,
    COMPACTION_THRESHOLD,
    DispatchRate,
    Policies,
)


class KeptPolicy(NamedTuple):
    """`type`: of the body. `unset_of_namespace`, `unset_of_topic`: status and body of GET where it is not set. `has_effect`: something here
    looks at it."""

    type: Any
    unset_of_namespace: tuple[int, Any] = (200, None)
    unset_of_topic: tuple[int, Any] = (200, None)
    has_effect: bool = False


class BookieAffinityGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bookies that a namespace prefers."""

    bookkeeperAffinityGroupPrimary: str | None = None
    """The groups that it prefers, separated by commas."""
    bookkeeperAffinityGroupSecondary: str | None = None
    """Those that it uses where these are not enough."""


class EntryFilters(msgspec.Struct, frozen=True):
    """The names of entry filters, separated by commas."""

    entryFilterNames: str | None = None
    """Such as `a,b`."""


KEPT: dict[str, KeptPolicy] = {
    "persistence/bookieAffinity": KeptPolicy(BookieAffinityGroup, (204, None)),
    "antiAffinity": KeptPolicy(str, (204, None)),
    "allowedTopicPropertyKeysForMetrics": KeptPolicy(list[str]),
    COMPACTION_THRESHOLD: KeptPolicy(Annotated[Int64, unit("bytes")], has_effect=True),
    "dispatcherPauseOnAckStatePersistent": KeptPolicy(bool | None, (200, False), (200, False)),
    "replication": KeptPolicy(list[str]),
    "replicatorDispatchRate": KeptPolicy(DispatchRate),
    "offloadPolicies": KeptPolicy(dict[str, Any]),
    "offloadThreshold": KeptPolicy(Annotated[Int64, unit("bytes")], (200, -1)),
    "offloadThresholdInSeconds": KeptPolicy(Annotated[Int64, unit("s")], (200, -1)),
    "offloadDeletionLagMs": KeptPolicy(Annotated[Int64, unit("ms")]),
    "removeOffloadPolicies": KeptPolicy(None),
    "subscriptionAuthMode": KeptPolicy(str, (200, "None")),
    AUTO_UPDATE: KeptPolicy(str, (204, None), has_effect=True),
    "entryFilters": KeptPolicy(EntryFilters),
    "shadowTopics": KeptPolicy(list[str] | None, unset_of_topic=(200, [])),
}
"""Path below the namespace or topic → policy."""

KEPT_WITHOUT_EFFECT = frozenset(name for name, policy in KEPT.items() if not policy.has_effect)

MAY_HAVE_SECRETS = "offloadPolicies"
"""The policy that may have passwords. No recording or log of a cluster has it. It has no effect here."""

_OFFLOAD = {
    "offloadThreshold": "managedLedgerOffloadThresholdInBytes",
    "offloadThresholdInSeconds": "managedLedgerOffloadThresholdInSeconds",
    "offloadDeletionLagMs": "managedLedgerOffloadDeletionLagInMillis",
}
"""Calls that read and set one field of the offload policies."""

_OFFLOAD_DEFAULTS: dict[str, Any] = {
    "offloadersDirectory": "./offloaders",
    "managedLedgerOffloadMaxThreads": 2,
    "managedLedgerOffloadPrefetchRounds": 1,
    "managedLedgerExtraConfigurations": {},
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 64 << 20,
    "s3ManagedLedgerOffloadReadBufferSizeInBytes": 1 << 20,
    "s3ManagedLedgerOffloadRoleSessionName": "pulsar-s3-offload",
    "gcsManagedLedgerOffloadMaxBlockSizeInBytes": 128 << 20,
    "gcsManagedLedgerOffloadReadBufferSizeInBytes": 1 << 20,
    "s3Driver": False,
    "gcsDriver": False,
    "fileSystemDriver": False,
}

_DRIVERS = {
    "S3": "s3Driver", "aws-s3": "s3Driver", "google-cloud-storage": "gcsDriver", "filesystem": "fileSystemDriver",
    "azureblob": "", "aliyun-oss": "s3Driver",
}  # fmt: skip
"""Driver → the field that tells its kind."""


NO_ENTRY_FILTERS = "entry filters of a namespace or topic are not supported: use the setting entryFilterNames"

AUTH_MODES = ("None", "Prefix")

_TEXTS = {"subscriptionAuthMode": AUTH_MODES, AUTO_UPDATE: (*AUTO_UPDATE_STRATEGIES,)}


def get_kept(
    policies: Policies,
    name: str,
    command: Admin,
    config: ServiceConfiguration | None,
    namespace: Policies | None = None,
) -> tuple[int, Any]:
    """The answer to GET. `config`: that of the broker, for a topic; None: the policies are those of a namespace. `namespace`: those of the
    topic's."""
    kept = policies.kept
    if (field := _OFFLOAD.get(name)) is not None:
        found = kept.get("offloadPolicies", {}).get(field, kept.get(name))
    else:
        found = kept.get(name)
    if found is None and name == COMPACTION_THRESHOLD and namespace is not None and is_applied(command):
        found = namespace.kept.get(name)
    if found is None and config is not None and is_applied(command):
        found = _of_broker(config).get(name)
    if found is not None:
        return 200, found
    return KEPT[name].unset_of_namespace if config is None else KEPT[name].unset_of_topic


def _of_broker(config: ServiceConfiguration) -> dict[str, Any]:
    """What holds where no level sets a policy."""
    return {
        COMPACTION_THRESHOLD: config.brokerServiceCompactionThresholdInBytes,
        "replicatorDispatchRate": msgspec.to_builtins(DispatchRate(ratePeriodInSecond=1)),
        "replication": [CLUSTER],
        "entryFilters": {"entryFilterNames": config.entryFilterNames},
    }


def set_kept(policies: Policies, name: str, command: Admin, *, of_topic: bool) -> None:
    """Set (POST, PUT) or remove (DELETE) a policy. Raises `AdminError` for a bad value."""
    kept = dict(policies.kept)
    if command.method == "DELETE" or name == "removeOffloadPolicies":
        if (field := _OFFLOAD.get(name)) is not None:
            kept["offloadPolicies"] = {
                key: value for key, value in kept.get("offloadPolicies", {}).items() if key != field
            }
        else:
            kept.pop("offloadPolicies" if name == "removeOffloadPolicies" else name, None)
    else:
        value = convert(command.body, KEPT[name].type)
        _check(name, value, of_topic=of_topic)
        if (field := _OFFLOAD.get(name)) is not None:
            kept["offloadPolicies"] = {**_OFFLOAD_DEFAULTS, **kept.get("offloadPolicies", {}), field: value}
        elif name == "offloadPolicies":
            kept[name] = offload_policies(value)
        else:
            # quirk: setting dispatcherPauseOnAckStatePersistent has no body
            kept[name] = True if value is None else msgspec.to_builtins(value)
        if name in _TEXTS and value not in _TEXTS[name]:
            del kept[name]  # quirk: Pulsar takes any other text for the default
    policies.kept = kept


def offload_policies(given: dict[str, Any]) -> dict[str, Any]:
    """Offload policies with their defaults, and the kind of their driver, if it is a known one."""
    kind = _DRIVERS.get(str(given.get("managedLedgerOffloadDriver")), "")
    return {
        **_OFFLOAD_DEFAULTS,
        **{name: value for name, value in given.items() if value is not None},
        **({kind: True} if kind else {}),
    }


def _check(name: str, value: Any, *, of_topic: bool) -> None:
    match name:
        case "antiAffinity" if not value.strip():
            raise AdminError(412, "antiAffinityGroup can't be empty")
        case "compactionThreshold" if value < 0:
            reason = (
                "Invalid value for compactionThreshold"
                if of_topic
                else "compactionThreshold must be 0 or more"
            )
            raise AdminError(412, reason)
        case "replication":
            check_clusters(value)
            if CLUSTER not in value:
                raise AdminError(
                    412, "Can not remove local cluster from the local topic-level replication clusters policy"
                )
            if set(value) != {CLUSTER}:
                raise AdminError(
                    403, f"Invalid cluster id: {next(each for each in value if each != CLUSTER)}"
                )
        case "offloadPolicies":
            driver = value.get("managedLedgerOffloadDriver")
            if not isinstance(driver, str) or driver not in _DRIVERS:
                raise AdminError(412, f"The driver is not supported, support value: {','.join(_DRIVERS)}")
            if driver != "filesystem" and not any(
                value.get(bucket)
                for bucket in (
                    "managedLedgerOffloadBucket",
                    "s3ManagedLedgerOffloadBucket",
                    "gcsManagedLedgerOffloadBucket",
                )
            ):
                raise AdminError(412, "The bucket must be specified for namespace offload.")
        case "entryFilters":
            names = (value.entryFilterNames or "").split(",")
            if not any(names):
                raise AdminError(
                    400, "entryFilterNames can't be empty. To remove entry filters use the remove method."
                )
            for each in names:
                if not entry_filters.known(each):
                    raise AdminError(400, f"Entry filter '{each}' not found")
            raise AdminError(501, NO_ENTRY_FILTERS)
        case "shadowTopics" if not value:
            raise AdminError(412, "Cannot specify empty shadow topics, please use remove command instead.")
        case "shadowTopics":
            raise AdminError(501, "shadow topics are not supported")


def check_clusters(clusters: list[str]) -> None:
    """Refuse a list of clusters to which nothing can be replicated. Raises `AdminError`."""
    if not clusters:
        raise AdminError(412, "ClusterIds should not be null or empty")
    if "global" in clusters:
        raise AdminError(412, "Cannot specify global in the list of replication clusters")
