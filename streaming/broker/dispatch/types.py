"""The dispatcher of each subscription type."""

from schemas.commands import KeySharedMeta, SubType
from streaming.broker.config import ServiceConfiguration
from streaming.broker.dispatch.multiple_consumers import MultipleConsumers
from streaming.broker.dispatch.single_active_consumer import SingleActiveConsumer
from streaming.broker.dispatch.sticky_key import StickyKeyMultipleConsumers, key_shared
from streaming.broker.dispatch.sticky_key_classic import ClassicStickyKeyMultipleConsumers

AnyDispatcher = (
    SingleActiveConsumer | MultipleConsumers | StickyKeyMultipleConsumers | ClassicStickyKeyMultipleConsumers
)
"""Every dispatcher type that the state can hold."""


def new_dispatcher(type_: SubType, meta: KeySharedMeta | None, config: ServiceConfiguration) -> AnyDispatcher:
    """A dispatcher without consumers for a subscription type. `meta`: the first consumer's Key_Shared mode."""
    match type_:
        case "Shared":
            return MultipleConsumers()
        case "Key_Shared":
            mode, out_of_order = key_shared(meta)
            classic = config.subscriptionKeySharedUseClassicPersistentImplementation
            kind = ClassicStickyKeyMultipleConsumers if classic else StickyKeyMultipleConsumers
            return kind.create(config, mode, out_of_order=out_of_order)
        case "Exclusive" | "Failover":
            return SingleActiveConsumer(failover=type_ == "Failover")
