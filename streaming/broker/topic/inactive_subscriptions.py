"""Subscriptions that nobody uses are deleted: what this means for topics of both kinds (mirrors `AbstractTopic.checkInactiveSubscriptions`;
docs/rules/subscriptions.md §11)."""

from collections.abc import Sized

from streaming.broker.context import NEVER


def expires_at(consumers: Sized, last_active: int, minutes: int) -> int:
    """When a round of the check deletes a subscription at the earliest (ms), `NEVER` while it has consumers.

    `last_active`: since when it has none (ms). `minutes`: for how long it may be without them; 0 or less: for ever.
    """
    return NEVER if consumers or minutes <= 0 else last_active + minutes * 60_000 + 1
