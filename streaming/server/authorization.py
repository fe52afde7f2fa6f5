"""What a role may ask of the server, and what it is told if it may not (docs/rules/authorization.md; mirrors `ServerCnx` and
`PulsarWebResource`).

The server asks before it makes a command of a request. The embedded engine has the broker's state; a query that folds elsewhere does not give
it, so there is no authorization before one.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from schemas.commands import Admin
from streaming.broker.admin_requests import lacking
from streaming.broker.authorization import Access, NotPrefixed, TenantMissing, roles
from streaming.broker.broker import Broker
from streaming.broker.context import namespace_of
from streaming.broker.errors import AdminError, BrokerError
from streaming.broker.names import complete, is_namespace_name, is_topic_name
from streaming.broker.topic.abstract_topic import Attached
from streaming.protocol.codec import Frame
from streaming.server.admin.asks import Ask, asks_of, asks_of_missing

ERROR = "AuthorizationError"
"""The ServerError of a refusal."""

_NOT_FOUND = "org.apache.pulsar.common.util.RestException: HTTP 404 Not Found"
_UNEXPECTED = "\n --- An unexpected error occurred in the server ---\n\nMessage: "

_FORBIDDEN = frozenset({"namespace", "namespacePolicy", "topicPolicy"})
"""What is refused with 403. All else is with 401."""


class Authorization:
    """The rules that are in force in a server."""

    def __init__(self, broker: Callable[[], Broker], settings: Mapping[str, str]) -> None:
        """`broker`: what has folded the commands. `settings`: the broker's, by Pulsar's names."""
        self._broker = broker
        self.anonymous = settings.get("anonymousUserRole", "").strip() or None
        """The role of clients without a token. None: they are refused."""
        self.on_change: Callable[[str], None] = _nothing
        """Is called with the namespace in which grants or policies have changed."""
        self._superusers = roles(settings.get("superUserRoles", ""))
        self._wildcards = settings.get("authorizationAllowWildcardsMatching", "").strip().lower() == "true"

    @classmethod
    def of(cls, broker: Callable[[], Broker], settings: Mapping[str, str]) -> "Authorization | None":
        """That of a broker with these settings; None: it has no authorization."""
        enabled = settings.get("authorizationEnabled", "").strip().lower() == "true"
        return cls(broker, settings) if enabled else None

    @property
    def _access(self) -> Access:
        return self._broker().access(self._superusers, wildcards=self._wildcards)

    def is_superuser(self, role: str) -> bool:
        """Whether the role may do everything."""
        return bool(role) and self._access.is_superuser(role)

    # -- frames

    def check_frame(self, role: str, frame: Frame) -> None:
        """Raise `BrokerError`, with the code and the text for the client, if the role may not ask what a frame does."""
        check = _FRAMES.get(frame.cmd)
        if check is not None:
            try:
                check(self._access, role, frame.fields)
            except BrokerError as error:
                if error.code == "TopicNotFound" and not self._broker().config.adminCallsAskByOperation:
                    raise BrokerError("MetadataError", str(error)) from None
                raise

    def may_keep(self, role: str, attached: Attached) -> bool:
        """Whether the role may still have a producer or consumer."""
        operation = "PRODUCE" if attached.subscription is None else "CONSUME"
        try:
            return self._access.may_topic(role, attached.topic, operation, attached.subscription or "")
        except (TenantMissing, NotPrefixed):
            return False

    def attached(self, connection: str, namespace: str) -> list[Attached]:
        """See `Broker.attached`."""
        return self._broker().attached(connection, namespace)

    # -- admin calls

    def asks(self, method: str, path: str) -> tuple[Ask, ...]:
        """What an admin call asks, in this order. `path`: its template. Raises `KeyError`."""
        config = self._broker().config
        if lacking(config, Admin(method=method, path=path.replace("{domain}", "persistent"))) is not None:  # type: ignore[arg-type]
            return asks_of_missing(method, path)
        return asks_of(method, path, by_operation=config.adminCallsAskByOperation)

    def check_call(self, role: str, original: str | None, ask: Ask, names: Mapping[str, str]) -> None:
        """Raise `AdminError` if the role may not make a call. `original`: the principal that a proxy would name. `names`: those in the
        path, as the client encoded them."""
        if ask.kind == "anyone":
            return
        refused = 403 if ask.kind in _FORBIDDEN else 401
        if not role:
            raise AdminError(refused, "Need to authenticate to perform the request")
        asks_both = self._broker().config.originalPrincipalsAreAsked
        if original is not None and original != role and not asks_both:
            raise AdminError(
                401, "Invalid combination of Original principal cannot be empty if the request is via proxy."
            )
        try:
            asked = {role, role if original is None else original}
            allowed = all(self._may_call(each, ask, _decoded(names)) for each in asked)
        except TenantMissing:
            raise AdminError(404, "Tenant does not exist") from None
        except NotPrefixed as error:
            raise AdminError(500, f"{_UNEXPECTED}{error}") from None
        if not allowed:
            raise AdminError(refused, _reason(role, original, ask, _decoded(names)))

    def _may_call(self, role: str, ask: Ask, names: Mapping[str, str]) -> bool:
        access, tenant = self._access, names.get("tenant", "")
        match ask.kind:
            case "tenants" if tenant:
                with suppress(TenantMissing):
                    return access.is_admin(role, tenant)
                return False
            case "tenant" | "admin" | "namespacePolicy" | "topicPolicy":
                return access.is_admin(role, tenant)
            case "namespace":
                return access.may_namespace(role, _namespace(names), ask.operation)
            case "lookup" if not access.has_namespace(_namespace(names)):
                return True
            case "topic" | "produce" | "lookup":
                operation = ask.operation or "PRODUCE"
                return access.may_topic(role, _topic(names), operation, names.get("subscription", ""))
        return access.is_superuser(role)


def _nothing(namespace: str) -> None:
    """Nobody is connected."""


def _decoded(names: Mapping[str, str]) -> dict[str, str]:
    return {name: unquote(str(value)) for name, value in names.items()}


def _namespace(names: Mapping[str, str]) -> str:
    return f"{names['tenant']}/{names['namespace']}"


def _topic(names: Mapping[str, str]) -> str:
    return f"{names.get('domain', 'persistent')}://{_namespace(names)}/{names['topic']}"


def _reason(role: str, original: str | None, ask: Ask, names: Mapping[str, str]) -> str:
    """Why a call is refused, in Pulsar's words."""
    who = f"for originalPrincipal [{'null' if original is None else original}] and clientAppId [{role}] about operation [{ask.operation}]"
    match ask.kind:
        case "superuser":
            return "This operation requires super-user access"
        case "admin":
            return "Don't have permission to administrate resources on this tenant"
        case "broker":
            return f"Unauthorized to validateBothSuperuserAndBrokerOperation {who} on broker [{names['address']}]"
        case "cluster":
            return f"Unauthorized to validateBothSuperuserAndClusterOperation {who} on cluster [{names['cluster']}]"
        case "clusterPolicy":
            return f"Unauthorized to validateBothSuperuserAndClusterPolicyOperation {who} on cluster [{names['cluster']}]"
        case "tenants":
            return f"Unauthorized to validateBothTenantOperationAndSuperUser {who} "
        case "tenant":
            return f"Unauthorized to validateTenantOperation {who} on tenant [{names['tenant']}]"
        case "produce":
            return f"Unauthorized to produce to topic {_topic(names)}"
    of_namespace = ask.kind.startswith("namespace")
    kind = "topic" if ask.kind == "lookup" else ask.kind
    check = f"validate{kind[0].upper()}{kind[1:]}Operation"
    place = f"namespace [{_namespace(names)}]" if of_namespace else f"topic [{_topic(names)}]"
    policy = f" on policy [{ask.policy}]" if ask.policy else ""
    return f"Unauthorized to {check} for operation [{ask.operation}] on {place}{policy}"


# -- what frames ask --------------------------------------------------------------------------------------------------


def _lookup(access: Access, role: str, fields: Mapping[str, Any]) -> None:
    _look(access, role, fields, "Client is not authorized to Lookup", BrokerError(ERROR, "Exception occurred while trying to authorize lookup"))  # fmt: skip


def _metadata(access: Access, role: str, fields: Mapping[str, Any]) -> None:
    name = namespace_of(complete(fields["topic"]))
    missing = BrokerError("TopicNotFound", f"Tenant or namespace or topic does not exist: {name}")
    _look(access, role, fields, "Client is not authorized to Get Partition Metadata", missing)


def _look(access: Access, role: str, fields: Mapping[str, Any], refused: str, missing: BrokerError) -> None:
    topic = complete(fields["topic"])
    try:
        allowed = not is_topic_name(topic) or access.may_topic(role, topic, "LOOKUP")
    except TenantMissing:
        raise missing from None
    if not allowed:
        raise BrokerError(ERROR, refused)


def _producer(access: Access, role: str, fields: Mapping[str, Any]) -> None:
    refused = "Client is not authorized to Produce"
    _use(access, role, fields, "PRODUCE", "", refused)
    if subscription := fields.get("initial_subscription_name"):
        _use(access, role, fields, "SUBSCRIBE", subscription, refused)


def _subscribe(access: Access, role: str, fields: Mapping[str, Any]) -> None:
    _use(access, role, fields, "CONSUME", fields["subscription"], "Client is not authorized to subscribe")


def _use(
    access: Access, role: str, fields: Mapping[str, Any], operation: str, subscription: str, refused: str
) -> None:
    topic = complete(fields["topic"])
    try:
        allowed = not is_topic_name(topic) or access.may_topic(role, topic, operation, subscription)
    except TenantMissing:
        raise BrokerError(ERROR, _NOT_FOUND) from None
    except NotPrefixed as error:
        raise BrokerError(ERROR, f"org.apache.pulsar.broker.PulsarServerException: {error}") from None
    if not allowed:
        raise BrokerError(ERROR, refused)


def _list_topics(access: Access, role: str, fields: Mapping[str, Any]) -> None:
    _list(access, role, fields, "Client is not authorized to GetTopicsOfNamespace",
          "Exception occurred while trying to authorize GetTopicsOfNamespace")  # fmt: skip


def _watch_topics(access: Access, role: str, fields: Mapping[str, Any]) -> None:
    _list(access, role, fields, "Proxy Client is not authorized to watchTopicList",
          "Exception occurred while trying to handle command WatchTopicList")  # fmt: skip


def _list(access: Access, role: str, fields: Mapping[str, Any], refused: str, missing: str) -> None:
    namespace = fields["namespace"]
    try:
        allowed = not is_namespace_name(namespace) or access.may_namespace(role, namespace, "GET_TOPICS")
    except TenantMissing:
        raise BrokerError(ERROR, missing) from None
    if not allowed:
        raise BrokerError(ERROR, refused)


_FRAMES: Mapping[str, Callable[[Access, str, Mapping[str, Any]], None]] = {
    "LOOKUP": _lookup,
    "PARTITIONED_METADATA": _metadata,
    "PRODUCER": _producer,
    "SUBSCRIBE": _subscribe,
    "GET_TOPICS_OF_NAMESPACE": _list_topics,
    "WATCH_TOPIC_LIST": _watch_topics,
}
"""The frames that ask. All others are about what a client has opened, or, on schemas, for everybody, as in Pulsar 4.0.7."""
