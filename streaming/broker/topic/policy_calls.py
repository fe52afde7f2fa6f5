"""Admin calls on the policies of one topic."""

from typing import Any, NamedTuple

from schemas.commands import Admin
from streaming.broker.admin_requests import call_of, respond
from streaming.broker.context import Context, namespace_of
from streaming.broker.errors import AdminError
from streaming.broker.policies.admin_calls import (
    ALL_POLICIES,
    LowerLevels,
    call_subscription_rate,
    get_policy,
    rated_subscription,
    set_policy,
)
from streaming.broker.policies.hierarchy import NO_POLICIES, HasPolicies, Policies, overlay


class _Called(NamedTuple):
    """What a call did. `answer`: its status and body."""

    changed: bool
    answer: tuple[int, Any]


def call_policy(ctx: Context, topic: HasPolicies, command: Admin, call: str) -> bool | None:
    """Answer a call on a policy of a topic. Was a policy changed? None, and no answer: the call is about something else."""
    found = _call(ctx, topic.name, topic.policies, command, call)
    if found is None:
        return None
    if command.lasting and found.changed:
        _call_lasting(ctx, topic.name, command)
    elif call[1:] == ALL_POLICIES:
        overlay(topic.policies, ctx.lasting.get(topic.name))
    respond(ctx, topic.name, command, *found.answer)
    return found.changed


def call_lasting(ctx: Context, name: str, command: Admin) -> bool:
    """Answer a call on a policy that a topic, which does not exist, will have whenever it does. False, and no answer: the call is about
    something else."""
    found = _call_lasting(ctx, name, command)
    if found is not None:
        respond(ctx, name, command, *found.answer)
    return found is not None


def _call_lasting(ctx: Context, name: str, command: Admin) -> _Called | None:
    policies = ctx.lasting.get(name) or Policies()
    found = _call(ctx, name, policies, command, call_of(command))
    if found is not None and found.changed:
        ctx.lasting[name] = policies
    return found


def _call(ctx: Context, name: str, policies: Policies, command: Admin, call: str) -> _Called | None:
    """Carry out a call on `policies`. None: it is about something else."""
    lower = LowerLevels(ctx.namespaces.get(namespace_of(name), NO_POLICIES), ctx.config)
    if (answer := get_policy(policies, command, call[1:], lower)) is not None:
        return _Called(False, answer)
    subscription = rated_subscription(call[1:])
    try:
        if subscription is not None:
            before = policies.subscriptionDispatchRates
            answer = call_subscription_rate(policies, command, subscription, lower)
            ctx.policies_changed()
            return _Called(policies.subscriptionDispatchRates is not before, answer)
        if not set_policy(policies, command, call[1:], ctx.config, lower):
            return None
    except AdminError as error:
        return _Called(False, (error.status, {"reason": error.reason}))
    ctx.policies_changed()
    return _Called(True, (204, None))
