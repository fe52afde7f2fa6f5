"""``schemas/admin.openapi.json``: the admin API in OpenAPI, from the table of its calls, their docstrings, and the types of what they take and
answer.

A call whose body or answer is not one of a policy has it in `BODIES` or `ANSWERS`; without an entry, it has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import inspect as types

from schemas import admin
from schemas.units import Int32, Int64, unit
from streaming.broker.admin.namespace_policies import _EMPTY, _FIELDS, _KEPT, _RATES, AuthPolicies
from streaming.broker.admin.permissions import AuthAction
from streaming.broker.admin.resources import ResourceGroup, ResourceQuota
from streaming.broker.admin_calls import CALLS
from streaming.broker.admin_table import NAMESPACE, NUMBERS, SCHEMAS, TOPIC, Call
from streaming.broker.context import TenantInfo
from streaming.broker.parameters import INT
from streaming.broker.policies.admin_calls import (
    ALL_POLICIES,
    NAMESPACE_CALLS,
    OTHER_FIELDS,
    POLICY_CALLS,
    TOPIC_CALLS,
    call_subscription_rate,
)
from streaming.broker.policies.hierarchy import BacklogQuota, DispatchRate, Policies, QuotaType
from streaming.broker.policies.kept import KEPT
from streaming.server.admin.absent import UNSUPPORTED
from streaming.server.admin.application import OWN
from tools.descriptions import descriptions, doc
from tools.descriptions import unit as unit_of

Schema = dict[str, Any]

Names = list[str]
Texts = dict[str, str]
Permissions = dict[str, list[AuthAction]]
Text = Annotated[str, "text/plain"]
Entry = Annotated[bytes, "application/octet-stream"]
"""An answer that is a bare text, and one that is a message: its properties are headers."""


_CLUSTER = "/clusters/{cluster}"
_ISOLATION = f"{_CLUSTER}/namespaceIsolationPolicies"
_QUOTA = "/resource-quotas/{tenant}/{namespace}/{bundle}"
_OF_TOPIC, _OF_NAMESPACE = f"{TOPIC}/subscription/{{subscription}}", f"{NAMESPACE}/{{bundle}}"
_LISTS = (
    "/{domain}/{tenant}/{namespace}",
    "/{domain}/{tenant}/{namespace}/partitioned",
    f"{NAMESPACE}/topics",
)

ANSWERS: dict[str, Any] = {
    "GET /tenants": Names,
    "GET /tenants/{tenant}": TenantInfo,
    "GET /namespaces/{tenant}": Names,
    "GET /namespaces/{cluster}/antiAffinity/{group}": Names,
    **{f"GET {path}": Names for path in _LISTS},
    f"GET {NAMESPACE}": "Policies",
    f"GET {NAMESPACE}/permissions": Permissions,
    f"GET {NAMESPACE}/permissions/subscription": dict[str, Names],
    f"GET {NAMESPACE}/properties": Texts,
    f"GET {NAMESPACE}/property/{{key}}": Text,
    f"DELETE {NAMESPACE}/property/{{key}}": Text,
    f"GET {NAMESPACE}/resourcegroup": str,
    f"GET {NAMESPACE}/replication": Names,
    f"GET {NAMESPACE}/allowedClusters": Names,
    f"GET {NAMESPACE}/bundles": admin.Bundles,
    f"GET {_OF_NAMESPACE}/topicHashPositions": admin.TopicHashPositions,
    "GET /non-persistent/{tenant}/{namespace}/{bundle}": Names,
    f"GET {TOPIC}/permissions": Permissions,
    f"GET {TOPIC}/partitions": admin.PartitionedTopicMetadata,
    f"GET {TOPIC}/subscriptions": Names,
    f"GET {TOPIC}/stats": admin.TopicStats,
    f"GET {TOPIC}/internalStats": admin.TopicInternalStats,
    f"GET {TOPIC}/internal-info": admin.TopicInternalInfo,
    f"GET {TOPIC}/partitioned-stats": admin.PartitionedTopicStats,
    f"GET {TOPIC}/partitioned-internalStats": admin.PartitionedTopicInternalStats,
    f"GET {TOPIC}/lastMessageId": admin.MessageId,
    f"GET {TOPIC}/messageid/{{time}}": admin.MessageId,
    f"GET {TOPIC}/getMessageIdByIndex": admin.MessageId,
    f"GET {TOPIC}/properties": Texts,
    f"GET {TOPIC}/ledger/{{ledger}}/entry/{{entry}}": Entry,
    f"GET {TOPIC}/examinemessage": Entry,
    f"GET {_OF_TOPIC}/position/{{n}}": Entry,
    f"GET {_OF_TOPIC}/properties": Texts,
    f"GET {_OF_TOPIC}/replicatedSubscriptionStatus": dict[str, bool],
    f"POST {_OF_TOPIC}/analyzeBacklog": admin.AnalyzedBacklog,
    f"PUT {TOPIC}/backlogSize": Annotated[Int64, unit("bytes")],
    f"POST {TOPIC}/terminate": admin.MessageId,
    f"POST {TOPIC}/terminate/partitions": dict[str, admin.MessageId],
    **{f"GET {path}": admin.LongRunning for path in (*UNSUPPORTED, f"{TOPIC}/compaction")},
    f"GET {SCHEMAS}/schema": admin.SchemaInfo,
    f"GET {SCHEMAS}/schema/{{version}}": admin.SchemaInfo,
    f"GET {SCHEMAS}/schemas": admin.AllSchemas,
    f"GET {SCHEMAS}/metadata": admin.SchemaMetadata,
    f"POST {SCHEMAS}/schema": admin.AddedSchema,
    f"DELETE {SCHEMAS}/schema": admin.SchemaVersion,
    f"POST {SCHEMAS}/compatibility": admin.Compatibility,
    f"POST {SCHEMAS}/version": admin.SchemaVersion,
    "GET /clusters": Names,
    f"GET {_CLUSTER}": admin.ClusterData,
    f"GET {_CLUSTER}/peers": Names,
    f"GET {_CLUSTER}/migrate": admin.MigrationState,
    f"GET {_CLUSTER}/failureDomains": dict[str, admin.FailureDomain],
    f"GET {_CLUSTER}/failureDomains/{{failure_domain}}": admin.FailureDomain,
    f"GET {_ISOLATION}": dict[str, admin.IsolationPolicy],
    f"GET {_ISOLATION}/{{policy}}": admin.IsolationPolicy,
    f"GET {_ISOLATION}/brokers": list[admin.IsolatedBroker],
    f"GET {_ISOLATION}/brokers/{{broker}}": admin.IsolatedBroker,
    "GET /resourcegroups": Names,
    "GET /resourcegroups/{group}": ResourceGroup,
    "GET /resource-quotas": ResourceQuota,
    f"GET {_QUOTA}": ResourceQuota,
    "GET /bookies/all": admin.Bookies,
    "GET /bookies/racks-info": dict[str, dict[str, admin.BookieInfo]],
    "GET /bookies/racks-info/{bookie}": admin.BookieInfo,
    "GET /brokers": Names,
    "GET /brokers/{cluster}": Names,
    "GET /brokers/leaderBroker": admin.LeaderBroker,
    "GET /brokers/health": Text,
    "GET /brokers/ready": Text,
    "GET /brokers/version": Text,
    "GET /brokers/internal-configuration": admin.InternalConfiguration,
    "GET /brokers/{cluster}/{broker}/ownedNamespaces": dict[str, admin.OwnedNamespace],
    "GET /brokers/configuration": Names,
    "GET /brokers/configuration/values": Texts,
    "GET /brokers/configuration/runtime": Texts,
    "GET /broker-stats/topics": dict[str, dict[str, dict[str, dict[str, Any]]]],
    "GET /broker-stats/metrics": list[admin.Metrics],
    "GET /broker-stats/mbeans": list[admin.Metrics],
    "GET /broker-stats/allocator-stats/{allocator}": admin.AllocatorStats,
}  # fmt: skip

BODIES: dict[str, Any] = {
    "PUT /tenants/{tenant}": TenantInfo,
    "POST /tenants/{tenant}": TenantInfo,
    f"PUT {NAMESPACE}": "Policies",
    f"POST {NAMESPACE}/permissions/{{role}}": list[AuthAction],
    f"POST {NAMESPACE}/permissions/subscription/{{subscription}}": Names,
    f"PUT {NAMESPACE}/properties": Texts,
    f"POST {NAMESPACE}/replication": Names,
    f"POST {NAMESPACE}/allowedClusters": Names,
    f"POST {NAMESPACE}/migration": bool,
    f"PUT {_OF_NAMESPACE}/split": list[Annotated[Int64, unit("hashes of topics")]] | None,
    f"PUT {TOPIC}": Texts | None,
    f"POST {TOPIC}/permissions/{{role}}": list[AuthAction],
    f"PUT {TOPIC}/partitions": Annotated[Int32, unit("partitions")] | admin.PartitionedTopicMetadata,
    f"POST {TOPIC}/partitions": Annotated[Int32, unit("partitions")] | admin.PartitionedTopicMetadata,
    f"PUT {TOPIC}/properties": Texts,
    f"PUT {_OF_TOPIC}": admin.MessagePosition | None,
    f"POST {_OF_TOPIC}/resetcursor": admin.MessagePosition,
    f"POST {_OF_TOPIC}/expireMessages": admin.MessagePosition,
    f"PUT {_OF_TOPIC}/properties": Texts,
    f"POST {_OF_TOPIC}/replicatedSubscriptionStatus": bool,
    f"POST {_OF_TOPIC}/analyzeBacklog": admin.MessagePosition | None,
    f"PUT {TOPIC}/backlogSize": admin.MessagePosition,
    **{f"POST {SCHEMAS}/{name}": admin.SchemaBody for name in ("schema", "compatibility", "version")},
    f"PUT {_CLUSTER}": admin.ClusterData,
    f"POST {_CLUSTER}": admin.ClusterData,
    f"POST {_CLUSTER}/peers": Names,
    f"POST {_CLUSTER}/migrate": admin.MigratedClusterUrl,
    f"POST {_CLUSTER}/failureDomains/{{failure_domain}}": admin.FailureDomain,
    f"POST {_ISOLATION}/{{policy}}": admin.IsolationPolicy,
    "PUT /resourcegroups/{group}": ResourceGroup,
    "POST /resource-quotas": ResourceQuota,
    f"POST {_QUOTA}": ResourceQuota,
    "POST /bookies/racks-info/{bookie}": admin.BookieInfo,
}  # fmt: skip

OTHER_STATUSES = {
    f"POST {SCHEMAS}/compatibility": 202,
    **dict.fromkeys(
        (
            f"PUT {_CLUSTER}", f"POST {_CLUSTER}", f"POST {_CLUSTER}/migrate", f"POST {TOPIC}/trim",
            f"DELETE {_CLUSTER}/failureDomains/{{failure_domain}}", f"POST {NAMESPACE}/replication", f"POST {NAMESPACE}/allowedClusters",
            "POST /brokers/configuration/{setting}/{value}", "DELETE /brokers/configuration/{setting}",
        ),
        200,
    ),
}  # fmt: skip
"""Those of success that are neither 200 with an answer nor 204 without one."""

PARAMETERS = {
    "domain": "The kind of the topic.",
    "tenant": "The tenant.",
    "namespace": "The namespace, without its tenant.",
    "topic": "The topic, without its namespace.",
    "bundle": "The bundle: where it begins and ends, such as 0x00000000_0x40000000.",
    "subscription": "The subscription.",
    "role": "The role.",
    "key": "The name of the property.",
    "value": "The value.",
    "setting": "The setting.",
    "group": "The group.",
    "cluster": "The cluster: `standalone` is the broker's.",
    "failure_domain": "The failure domain.",
    "policy": "The isolation policy.",
    "broker": "The broker, HOST:PORT.",
    "bookie": "The bookie.",
    "allocator": "The allocator: default or ml-cache.",
    "version": "The version of the schema, from 0.",
    "count": "How many.",
    "seconds": "The age.",
    "n": "Which one, from 1.",
    "time": "The time.",
    "ledger": "The ledger.",
    "entry": "The entry in the ledger.",
}
"""Those of paths."""

QUERY: dict[str, tuple[Any, str]] = {
    "applied": (bool, "Show the value in force, of whichever level sets it."),
    "backlogQuotaType": (QuotaType, "What the quota limits: the size of the backlog, or the age of its oldest message."),
    "brokerId": (str, "The broker, HOST:PORT: this one."),
    "bundle": (str, "Only topics of this bundle."),
    "checkAllowAutoCreation": (bool, "Create the topic, if it does not exist and use creates topics."),
    "destinationBroker": (str, "The broker, HOST:PORT, that is to have it: this one."),
    "excludeConsumers": (bool, "Leave the consumers out."),
    "excludePublishers": (bool, "Leave the producers out."),
    "force": (bool, "Also if it is in use."),
    "getEarliestTimeInBacklog": (bool, "With the publish times of the oldest messages in backlogs."),
    "group": (str, "The group of the bookie."),
    "includeSystemTopic": (bool, "With those that Pulsar keeps for itself."),
    "index": (Int64, "The index."),
    "initialPosition": (str, "earliest: count from the first message. Otherwise: from the last one."),
    "key": (str, "The name of the property."),
    "messagePosition": (Int64, "Which one, from 1."),
    "messageTTL": (Int32, "The TTL."),
    "migrated": (bool, "Whether it is migrated."),
    "mode": (str, "PERSISTENT, NON_PERSISTENT or ALL."),
    "perPartition": (bool, "With those of each partition (the default)."),
    "replicated": (bool, "Whether the subscription is said to be replicated."),
    "splitAlgorithmName": (str, "How to split. specified_positions_divide: at those in the body."),
    "subscriptionBacklogSize": (bool, "With the sizes of backlogs (the default)."),
    "subscriptionExpirationTime": (Int32, "The time."),
    "tenant": (str, "The tenant."),
    "topics": (list[str], "Only of these topics."),
    "unload": (bool, "Unload its topics, too."),
}  # fmt: skip

UNITS = {
    "count": "messages", "seconds": "s", "n": "messages", "time": "ms since the epoch", "ledger": "number of its kind", "entry": "number of its kind",
    "index": "messages", "messagePosition": "messages", "messageTTL": "s", "subscriptionExpirationTime": "min",
}  # fmt: skip
"""Those of parameters that are numbers."""

FURTHER: dict[str, tuple[str, ...]] = {
    **{f"GET {path}": ("bundle", "includeSystemTopic") for path in _LISTS},
    f"GET {TOPIC}/partitions": ("checkAllowAutoCreation",),
    f"GET {TOPIC}/stats": ("excludePublishers", "excludeConsumers"),
    f"GET {TOPIC}/partitioned-stats": (
        "perPartition", "getEarliestTimeInBacklog", "subscriptionBacklogSize", "excludePublishers", "excludeConsumers",
    ),
    f"PUT {_OF_TOPIC}": ("replicated",),
    f"PUT {_OF_NAMESPACE}/split": ("splitAlgorithmName", "unload"),
    f"GET {_OF_NAMESPACE}/topicHashPositions": ("topics",),
    **{f"PUT {path}/unload": ("destinationBroker",) for path in (TOPIC, NAMESPACE, _OF_NAMESPACE)},
    **{f"{method} {path}/backlogQuota": ("backlogQuotaType",) for method in ("POST", "DELETE") for path in (TOPIC, NAMESPACE)},
    **{f"POST {TOPIC}/{name}": (name,) for name in ("messageTTL", "subscriptionExpirationTime")},
    "GET /brokers/health": ("brokerId",),
    "GET /brokers/ready": ("brokerId",),
}  # fmt: skip
"""Query parameters that the docstrings do not name."""

_OF_POLICIES = {
    "bundles": (admin.Bundles, "The bundles of its topics."),
    "backlog_quota_map": (dict[QuotaType, BacklogQuota], "The limits of the backlog, by type."),
    "auth_policies": (AuthPolicies, "Who may do what. Nothing enforces it."),
    "replication_clusters": (Names, "The clusters: `standalone` is the one that there is."),
    "allowed_clusters": (Names, "The clusters that it may have."),
    "clusterDispatchRate": (dict[str, DispatchRate], "What `topicDispatchRate` was called once."),
    "replicatorDispatchRate": (dict[str, DispatchRate], "No effect here."),
    "latency_stats_sample_rate": (dict[str, Annotated[Int64, unit("messages")]], "No effect here."),
    "properties": (Texts, "Any texts by name."),
    "deleted": (bool, "Always false."),
    "migrated": (bool, "No effect here."),
    "is_allow_auto_update_schema_with_replicator": (bool, "No effect here."),
}  # fmt: skip
"""Fields of the object of all policies of a namespace that no call on a single policy has."""


def document() -> Schema:
    """The description of the API, in OpenAPI 3.1."""
    made = _Maker()
    paths: dict[str, Schema] = {}
    calls = (*OWN, *CALLS, *(Call("GET", path, _never_run) for path in UNSUPPORTED))
    for call in calls:
        paths.setdefault(call.path, {}).setdefault(call.method.lower(), made.operation(call))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pulsar's admin API, as Magnetar serves it",
            "version": "v2",
            "description": "Fields that are numbers have their unit in `x-unit`. An answer may have fields that are not here, or lack some: "
            "releases of Pulsar differ.",
        },
        "servers": [{"url": "/admin/v2"}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(made.schemas.items())),
            "parameters": dict(sorted(made.parameters.items())),
            "responses": {"Refused": {"description": "Not done.", "content": _content(made.refused)}},
        },
    }


def _never_run() -> None:
    """The state of what is not supported: it was never run."""


def _content(schema: Schema, media: str = "application/json") -> Schema:
    return {media: {"schema": schema}}


class _Maker:
    """Makes operations, and the parts that they name."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}
        self.parameters: dict[str, Schema] = {}
        self.schemas["Policies"] = self._policies()
        self.schemas["Domain"] = {
            **self.schema_of(Literal["persistent", "non-persistent"]),
            "description": PARAMETERS["domain"],
        }
        self.refused = self.schema_of(admin.RefusedCall)

    # -- operations

    def operation(self, call: Call[Any]) -> Schema:
        """The operation of a call."""
        key, (answer, body, text) = f"{call.method} {call.path}", self._about(call)
        if call.refusal:
            text += " A partitioned topic refuses it (405)."
        query = dict.fromkeys(
            (*re.findall(r"\?(\w+)=", doc(call.handler)), *call.numbers, *FURTHER.get(key, ()))
        )
        if call.method == "GET" and call in TOPIC_CALLS.calls:
            query["applied"] = None
        found: Schema = {
            "operationId": operation_id(call),
            "tags": [_tag(call.path)],
            "summary": re.split(r"(?<=\.) ", text)[0].removesuffix("."),
            "description": text,
            "parameters": [
                *(self._parameter("path", name) for name in re.findall(r"\{(\w+)\}", call.path)),
                *(self._parameter("query", name) for name in query),
            ],
        }
        if body is not None:
            optional = body == "Policies" or type(None) in get_args(body)
            schema = self.schema_of(get_args(body)[0] if optional and get_args(body) else body)
            found["requestBody"] = {"content": _content(schema), "required": not optional}
        found["responses"] = {
            **self._success(call, key, answer),
            "default": {"$ref": "#/components/responses/Refused"},
        }
        return found

    def _about(self, call: Call[Any]) -> tuple[Any, Any, str]:
        """Types of answer and body, None for none, and what the call does."""
        key, of_topic = f"{call.method} {call.path}", call.path.startswith(TOPIC)
        if call not in (*NAMESPACE_CALLS.calls, *TOPIC_CALLS.calls):
            return ANSWERS.get(key), BODIES.get(key), _without_links(doc(call.handler))
        name, described = call.path.removeprefix(TOPIC if of_topic else NAMESPACE)[1:], descriptions(Policies)
        type_: Any
        if name in ("backlogQuota", "backlogQuotaMap"):
            shows = name == "backlogQuotaMap"
            type_, text = dict[QuotaType, BacklogQuota] if shows else BacklogQuota, described["backlogQuota"]
        elif call.handler is call_subscription_rate:
            type_, text = DispatchRate, described["subscriptionDispatchRates"]
        elif name == ALL_POLICIES:
            return None, None, "Remove all policies of the topic."
        elif name in KEPT:
            type_ = KEPT[name].type
            text = (
                "It counts where `schemaCompatibilityStrategy` is not set."
                if KEPT[name].has_effect
                else "It is kept and returned, and has no effect."
            )
            if name == "antiAffinity":
                text += " The group is the body as it is: quotes, which JSON has, are part of it."
        else:
            policy, type_ = POLICY_CALLS[name]
            text = described[policy]
        what = {"GET": "Show", "DELETE": "Remove"}.get(call.method, "Set")
        text = f"{what} the policy {_named(name)}. {_without_links(text)}"
        if of_topic and f"{call.method} {call.path}" in FURTHER and name in QUERY:
            return None, None, text  # it is a parameter of the query
        if call.method == "GET":
            plain = [each for each in get_args(type_) if each is not type(None)]
            nullable = type(None) in get_args(type_)
            shown = plain[0] if nullable else type_
            return (Text if name == "antiAffinity" else shown), None, text
        return None, None if call.method == "DELETE" else type_, text

    def _success(self, call: Call[Any], key: str, answer: Any) -> Schema:
        if answer is None:
            return {str(OTHER_STATUSES.get(key, 204)): {"description": "Done."}}
        media = next(
            (each for each in getattr(answer, "__metadata__", ()) if isinstance(each, str)),
            "application/json",
        )
        found: Schema = {
            str(OTHER_STATUSES.get(key, 200)): {
                "description": "Done. There is no body if nothing is set." if key in _SET_OR_NOT else "Done.",
                "content": _content({"type": "string", "format": "binary"} if answer is Entry else self.schema_of(answer), media),
            }
        }  # fmt: skip
        if key in _SET_OR_NOT:
            found["204"] = {"description": "Nothing is set."}
        return found

    def _parameter(self, where: str, name: str) -> Schema:
        if where == "path":
            number = Int32 if NUMBERS.get(name) == INT else Int64
            schema, text = (
                self.schema_of("Domain" if name == "domain" else number if name in NUMBERS else str),
                PARAMETERS[name],
            )
        else:
            type_, text = QUERY[name]
            schema = self.schema_of(type_)
        if name in UNITS:
            schema = {**schema, "x-unit": UNITS[name]}
        id_ = name if where == "path" else f"{name}_asked"
        self.parameters[id_] = {
            "name": name,
            "in": where,
            "description": text,
            "required": where == "path",
            "schema": schema,
        }
        return {"$ref": f"#/components/parameters/{id_}"}

    # -- schemas

    def schema_of(self, type_: Any) -> Schema:
        """The schema of a type, or of the one of this name."""
        return (
            {"$ref": f"#/components/schemas/{type_}"}
            if isinstance(type_, str)
            else self._schema(types.type_info(type_))
        )

    def _schema(self, type_: types.Type) -> Schema:
        match type_:
            case types.Metadata(type=plain):
                found = self._schema(plain)
                return {**found, "x-unit": unit} if (unit := unit_of(type_)) else found
            case types.IntType(ge=least):
                return {"type": "integer", "format": "int32" if least == -(2**31) else "int64"}
            case types.FloatType():
                return {"type": "number", "format": "double"}
            case types.StrType():
                return {"type": "string"}
            case types.BoolType():
                return {"type": "boolean"}
            case types.AnyType():
                return {}
            case types.LiteralType(values=values):
                return {"type": "string", "enum": list(values)}
            case types.ListType(item_type=item):
                return {"type": "array", "items": self._schema(item)}
            case types.DictType(value_type=value):
                return {"type": "object", "additionalProperties": self._schema(value)}
            case types.NoneType():
                return {"type": "null"}
            case types.UnionType(types=members):
                return {"anyOf": [self._schema(each) for each in members]}
            case types.StructType(cls=cls):
                self._add(cls, type_)
                return {"$ref": f"#/components/schemas/{cls.__name__}"}
        raise TypeError(f"no schema of {type_}")

    def _add(self, cls: type[msgspec.Struct], type_: types.StructType) -> None:
        if cls.__name__ in self.schemas:
            return
        known = self.schemas[cls.__name__] = {"type": "object"}
        described = descriptions(cls)
        properties = {}
        for field in type_.fields:
            schema = {**self._schema(field.type), "description": described[field.name]}
            if isinstance(field.default, bool | int | float | str):
                schema["default"] = field.default
            properties[field.encode_name] = schema
        for name, text in OTHER_FIELDS.get(cls, {}).items():
            like = properties["limitSize"] if name == "limit" else {"type": "string"}
            properties[name] = {key: like[key] for key in like if key != "default"} | {"description": text}
        known |= {"title": cls.__name__, "description": " ".join(doc(cls).split()), "properties": properties}
        if required := [field.encode_name for field in type_.fields if field.required]:
            known["required"] = required

    def _policies(self) -> Schema:
        described = descriptions(Policies)
        properties = {
            name: {**self.schema_of(type_), "description": text}
            for name, (type_, text) in _OF_POLICIES.items()
        }
        for name, policy in (_FIELDS | _RATES).items():
            type_ = next(type_ for of, type_ in POLICY_CALLS.values() if of == policy)
            shown = dict[str, type_] if name in _RATES else type_  # type: ignore[valid-type]
            text = described[policy] + " By cluster." * (name in _RATES)
            properties[name] = {**self.schema_of(shown), "description": _without_links(text)}
        for name, policy in _KEPT.items():
            properties[name] = {
                **self.schema_of(KEPT[policy].type),
                "description": f"The policy `{policy}`. No effect here.",
            }
        assert properties.keys() >= _EMPTY.keys()
        return {
            "type": "object",
            "title": "Policies",
            "description": "All policies of a namespace. Those that are not set are absent, or have a default.",
            "properties": dict(sorted(properties.items())),
        }


_SET_OR_NOT = {
    *(f"GET {call.path}" for call in (*NAMESPACE_CALLS.calls, *TOPIC_CALLS.calls)),
    f"GET {NAMESPACE}/resourcegroup",
    f"GET {NAMESPACE}/property/{{key}}",
    f"GET {_CLUSTER}/peers",
    f"GET {SCHEMAS}/metadata",
}
"""Calls that show what may be set or not."""


def operation_id(call: Call[Any]) -> str:
    """The name of a call: its method and the parts of its path."""
    return call.method.lower() + "".join(_words(call.path))


def _words(path: str) -> Iterator[str]:
    for below, word in ((TOPIC, "Topic"), (NAMESPACE, "Namespace"), (SCHEMAS, "Schemas")):
        if path.startswith(below):
            yield word
            path = path.removeprefix(below)
    for brace, part in re.findall(r"(\{?)([^/{}_-]+)", path):
        yield f"{'By' if brace else ''}{part[0].upper()}{part[1:]}"


def _named(policy: str) -> str:
    """A policy by its name in the path of a call."""
    if policy == "{subscription}/dispatchRate":
        return "`dispatchRate` of a subscription"
    other = {"removeOffloadPolicies": "offloadPolicies", "backlogQuotaMap": "backlogQuota"}
    return f"`{other.get(policy, policy)}`"


def _without_links(text: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))


def _tag(path: str) -> str:
    first = path.split("/")[1]
    return "topics" if first in ("{domain}", "non-persistent") else first
