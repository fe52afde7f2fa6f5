"""What can become of a message, in the words of all answers. docs/guide/answers.md says what each means to a user."""

from typing import Literal

from schemas import effects as e
from schemas.effects import Effect

Published = Literal["stored", "duplicate", "refused", "quarantined", "not sent", "never seen", "not kept"]
"""What became of a publish. ``not sent``: under these policies, its producer could not send it. ``not kept``: it may have been there, but
the outputs that are kept do not reach back so far."""

Outcome = Literal[
    "acked", "acked out of order", "expired", "evicted", "skipped", "in flight", "delayed", "waiting", "not for it",
    "subscription deleted", "unknown",
]  # fmt: skip
"""What became of a stored message for one subscription. ``not for it``: the subscription began after the message. ``unknown``: the
answer has not seen enough to tell."""

MOVED: dict[type[Effect], Outcome] = {e.Expired: "expired", e.Evicted: "evicted", e.CursorMoved: "skipped"}
"""The effects that move a subscription past messages without acks, and what becomes of these."""

LOST: tuple[Outcome, ...] = tuple(MOVED.values())
NOT_STORED: tuple[Published, ...] = ("duplicate", "refused", "quarantined", "not sent")


def loses_writes(event: e.TopicEvent) -> bool:
    """Whether a topic closes, so that writes which a fault put off are never answered."""
    return event.cause.startswith(("deleted", "unloaded"))


Change = Literal[
    "lost newly", "saved", "lost earlier", "lost later", "lost by another rule", "delivered later", "redelivered", "unknown"
]  # fmt: skip
"""``lost``: the message left the subscription's backlog without an ack. ``delivered later``: or not within the log.
``redelivered``: sent another number of times. ``unknown``: what became of it depends on what clients would have done, for
example because the message was refused; or one run has acked what another has not."""

CHANGES: tuple[Change, ...] = Change.__args__  # type: ignore[attr-defined]
