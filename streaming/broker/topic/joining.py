"""Who may subscribe, on either kind of topic (mirrors `AbstractTopic` and `AbstractSubscription`; docs/rules/subscriptions.md §1, §2)."""

from typing import Protocol

from schemas.commands import KeySharedMeta, Subscribe, SubType
from streaming.broker.context import Context
from streaming.broker.errors import BrokerError
from streaming.broker.names import check_subscription_name
from streaming.broker.subscription.consumer import Consumer
from streaming.broker.topic.abstract_topic import AbstractTopic


class _Dispatcher(Protocol):
    def mismatch(self, meta: KeySharedMeta | None, /) -> str | None: ...


class _Subscription(Protocol):
    @property
    def type(self) -> SubType | None: ...
    @property
    def consumers(self) -> list[Consumer]: ...
    @property
    def dispatcher(self) -> _Dispatcher | None: ...


def too_large(ctx: Context, command: Subscribe) -> str | None:
    """Why a consumer's metadata is refused, or None if it is not."""
    most = ctx.config.maxConsumerMetadataSize
    if sum(len(each.key) + len(each.value) for each in command.metadata) <= most:
        return None
    return f"the metadata has more than {most} characters"


def check_max_consumers(ctx: Context, topic: AbstractTopic) -> None:
    """Raise `BrokerError` if the topic has as many consumers as it may have."""
    limit = ctx.policies_of(topic).maxConsumersPerTopic
    if 0 < limit <= len(topic.consumer_handles):
        raise BrokerError("ConsumerBusy", "Topic reached max consumers limit")


def check_type_and_name(ctx: Context, topic: AbstractTopic, command: Subscribe) -> None:
    """Raise `BrokerError` if the topic has no subscriptions of that type, or none may be named so."""
    if command.subType == "Key_Shared" and not ctx.config.subscriptionKeySharedEnable:
        raise BrokerError("NotAllowedError", "Key_Shared subscription is disabled by broker.")
    if command.subType not in ctx.policies_of(topic).subscriptionTypesEnabled:
        raise BrokerError(
            "NotAllowedError", f"Topic[{{{topic.name}}}] doesn't support {command.subType} sub type!"
        )
    check_subscription_name(command.subscription)


def check_joins(ctx: Context, topic: AbstractTopic, subscription: _Subscription, command: Subscribe) -> None:
    """Raise `BrokerError` if a consumer can't join those that a subscription has."""
    why = mismatch(subscription, command)
    if why is not None and (subscription.type != command.subType or ctx.config.keySharedModesMustAgree):
        raise BrokerError("ConsumerBusy", f"Subscription is of different type. {why}")
    if command.subType == "Exclusive":
        raise BrokerError("ConsumerBusy", "Exclusive consumer is already connected")
    limit = ctx.policies_of(topic).maxConsumersPerSubscription
    if 0 < limit <= len(subscription.consumers):
        raise BrokerError("ConsumerBusy", "Subscription reached max consumers limit")


def mismatch(subscription: _Subscription, command: Subscribe) -> str | None:
    """Why a subscription with its present type and mode is not what a consumer asks for, or None if it is."""
    active, asked = subscription.type, command.subType
    if active != asked:
        return f"Active subscription type of '{active}' is different than the connecting consumer's type '{asked}'."
    dispatcher = subscription.dispatcher
    return None if dispatcher is None else dispatcher.mismatch(command.keySharedMeta)
