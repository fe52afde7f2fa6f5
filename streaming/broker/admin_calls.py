"""The one table of Pulsar's admin calls (I1, D4). Each row stands beside its handler, and all of them are here."""

from typing import Any

from streaming.broker import broker
from streaming.broker.admin import (
    dynamic_settings,
    namespaces,
    partitioned_topics,
    permissions,
    resources,
    tenants,
)
from streaming.broker.admin_table import Call
from streaming.broker.persistent import admin_operations
from streaming.broker.policies import admin_calls
from streaming.broker.schema import schema_registry

CALLS: tuple[Call[Any], ...] = (
    *dynamic_settings.CALLS.calls,
    *resources.CALLS.calls,
    *tenants.CALLS.calls,
    *namespaces.LISTS.calls,
    *namespaces.CALLS,
    *admin_calls.NAMESPACE_CALLS.calls,
    *admin_operations.CALLS.calls,
    *broker.CALLS.calls,
    *partitioned_topics.CALLS.calls,
    *permissions.CALLS.calls,
    *admin_calls.TOPIC_CALLS.calls,
    *schema_registry.CALLS.calls,
)
"""Method, path below ``/admin/v2``, handler, and what the call is on a partitioned topic."""
