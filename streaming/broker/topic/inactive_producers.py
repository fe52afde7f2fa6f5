"""Producers that are inactive for too long: those of the short form leave, and deduplication forgets them. What this means for
topics of both kinds (brokerDeduplicationProducerInactivityTimeoutMinutes). Times are in ms."""

from streaming.broker.config import ServiceConfiguration
from streaming.broker.context import Context


def timeout(config: ServiceConfiguration) -> int:
    """For how long a producer may be inactive. 0: for ever."""
    return config.brokerDeduplicationProducerInactivityTimeoutMinutes * 60_000


def interval(config: ServiceConfiguration) -> int:
    """The interval of the check. 0: off."""
    return timeout(config) // 3


def inactive_before(ctx: Context) -> int:
    """A producer goes now that is inactive since before this time."""
    return ctx.clock - timeout(ctx.config)


def goes_at(ctx: Context, since: int) -> int:
    """When a producer goes that is inactive since then."""
    return since + timeout(ctx.config) + 1
