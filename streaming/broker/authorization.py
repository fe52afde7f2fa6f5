"""Which role may do what (docs/rules/authorization.md §2 to §5; mirrors `PulsarAuthorizationProvider` and `AuthorizationService`).

Nothing in the core asks. Whoever takes requests of clients does, before there is a command: what is refused is not in the log. Decisions
need the state alone, in which tenants have their admins, and grants are.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from streaming.broker.admin.dynamic_settings import changed_value
from streaming.broker.admin.namespace_policies import SUBSCRIPTION_PERMISSIONS
from streaming.broker.admin.permissions import AuthAction
from streaming.broker.context import Context, namespace_of, tenant_of
from streaming.broker.names import base_of

_EITHER: tuple[AuthAction, ...] = ("produce", "consume")

TOPIC_OPERATIONS: Mapping[str, tuple[AuthAction, ...]] = {
    **dict.fromkeys(("LOOKUP", "GET_STATS", "GET_METADATA"), _EITHER),
    "PRODUCE": ("produce",),
    **dict.fromkeys(
        ("CONSUME", "SUBSCRIBE", "UNSUBSCRIBE", "GET_SUBSCRIPTIONS", "SKIP", "EXPIRE_MESSAGES", "PEEK_MESSAGES", "RESET_CURSOR",
         "GET_BACKLOG_SIZE", "SET_REPLICATED_SUBSCRIPTION_STATUS", "GET_REPLICATED_SUBSCRIPTION_STATUS"),
        ("consume",),
    ),
}  # fmt: skip
"""Operation on a topic → the actions of which one is enough. All others are for the tenant's admins."""

NAMESPACE_OPERATIONS: Mapping[str, tuple[AuthAction, ...]] = {
    **dict.fromkeys(("GET_TOPICS", "GET_BUNDLE"), _EITHER),
    **dict.fromkeys(("CLEAR_BACKLOG", "UNSUBSCRIBE"), ("consume",)),
}
"""The same for operations on a namespace. Only what is granted on the whole namespace counts."""


class TenantMissing(Exception):
    """A role that is no superuser asks for something of a tenant that does not exist."""


class NotPrefixed(Exception):
    """A subscription's name does not begin with the role, as the namespace's `subscriptionAuthMode` demands. The text says so."""


class Access(NamedTuple):
    """Who may do what in a broker. `superusers`: the roles that may do everything, unless they were changed while the broker runs.
    `wildcards`: Pulsar's ``authorizationAllowWildcardsMatching``."""

    ctx: Context
    superusers: frozenset[str]
    wildcards: bool

    def is_superuser(self, role: str) -> bool:
        """Whether the role may do everything."""
        changed = changed_value(self.ctx, "superUserRoles")
        return role in (self.superusers if changed is None else roles(changed))

    def is_admin(self, role: str, tenant: str) -> bool:
        """Whether the role administers the tenant. Raises `TenantMissing`."""
        if self.is_superuser(role):
            return True
        if (info := self.ctx.tenants.get(tenant)) is None:
            raise TenantMissing(tenant)
        return role in info.adminRoles

    def has_namespace(self, namespace: str) -> bool:
        """Whether there is such a namespace."""
        return namespace in self.ctx.namespaces

    def may_namespace(self, role: str, namespace: str, operation: str) -> bool:
        """Whether the role may do something with a namespace. Raises `TenantMissing`."""
        return self.is_admin(role, tenant_of(namespace)) or any(
            self._is_granted(role, namespace, action) for action in NAMESPACE_OPERATIONS.get(operation, ())
        )

    def may_topic(self, role: str, topic: str, operation: str, subscription: str = "") -> bool:
        """Whether the role may do something with a topic, and with a `subscription` of it if it is about one. Raises `TenantMissing`,
        `NotPrefixed`."""
        namespace = namespace_of(topic)
        if self.is_admin(role, tenant_of(namespace)):
            return True
        actions = TOPIC_OPERATIONS.get(operation, ())
        if actions == ("consume",) and subscription.strip() and not self._may_use(role, topic, subscription):
            return False
        return any(
            self._is_granted(role, namespace, action)
            or self._is_granted(role, topic, action)
            # A partition has what is granted on the whole topic, too. quirk: but not by a wildcard
            or action in self._granted(base_of(topic)).get(role, ())
            for action in actions
        )

    def _may_use(self, role: str, topic: str, subscription: str) -> bool:
        """Whether the subscription is for the role, or for everybody who may consume. Raises `NotPrefixed`."""
        policies = self.ctx.namespaces.get(namespace_of(topic))
        kept = {} if policies is None else policies.kept
        allowed = kept.get(SUBSCRIPTION_PERMISSIONS, {}).get(subscription)
        if allowed and role not in allowed:
            return False
        if kept.get("subscriptionAuthMode") == "Prefix" and not subscription.startswith(role):
            raise NotPrefixed(
                "Failed to create consumer - The subscription name needs to be prefixed by the authentication role, "
                f"like {role}-xxxx for topic: {topic}"
            )
        return True

    def _granted(self, place: str) -> Mapping[str, list[str]]:
        return self.ctx.permissions.get(place, {})

    def _is_granted(self, role: str, place: str, action: AuthAction) -> bool:
        """Whether an action is granted to a role on a namespace or topic."""
        granted = self._granted(place)
        return action in granted.get(role, ()) or (
            self.wildcards and any(action in granted[each] for each in _matching(role, granted))
        )


def _matching(role: str, granted: Mapping[str, list[str]]) -> Iterator[str]:
    """The names with a star at an end that stand for the role."""
    for each in granted:
        if (each.endswith("*") and role.startswith(each[:-1])) or (
            each.startswith("*") and role.endswith(each[1:])
        ):
            yield each


def roles(setting: str) -> frozenset[str]:
    """The roles of a setting such as ``superUserRoles``: a list with commas."""
    return frozenset(role for each in setting.split(",") if (role := each.strip()))
