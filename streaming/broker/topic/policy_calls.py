"""Admin calls on the policies of one topic."""

from schemas.commands import Admin
from streaming.broker.admin_requests import respond
from streaming.broker.context import Context, namespace_of
from streaming.broker.errors import AdminError
from streaming.broker.policies.admin_calls import (
    LowerLevels,
    call_subscription_rate,
    get_policy,
    rated_subscription,
    set_policy,
)
from streaming.broker.policies.hierarchy import NO_POLICIES
from streaming.broker.topic.abstract_topic import AbstractTopic


def call_policy(ctx: Context, topic: AbstractTopic, command: Admin, call: str) -> bool | None:
    """Answer a call on a policy of a topic. Was a policy changed? None, and no answer: the call is about something else."""
    lower = LowerLevels(ctx.namespaces.get(namespace_of(topic.name), NO_POLICIES), ctx.config)
    if (answer := get_policy(topic.policies, command, call[1:], lower)) is not None:
        respond(ctx, topic.name, command, *answer)
        return False
    subscription = rated_subscription(call[1:])
    try:
        if subscription is not None:
            before = topic.policies.subscriptionDispatchRates
            answer = call_subscription_rate(topic.policies, command, subscription, lower)
            ctx.policies_changed()
            respond(ctx, topic.name, command, *answer)
            return topic.policies.subscriptionDispatchRates is not before
        if not set_policy(topic.policies, command, call[1:], ctx.config, lower):
            return None
    except AdminError as error:
        respond(ctx, topic.name, command, error.status, {"reason": error.reason})
        return False
    ctx.policies_changed()
    respond(ctx, topic.name, command, 204)
    return True
