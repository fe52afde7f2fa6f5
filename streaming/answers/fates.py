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
"""What became of a stored message for one subscription. ``not for it``: the subscription was not there when the message came. ``unknown``: the
answer has not seen enough to tell."""

MOVED: dict[type[Effect], Outcome] = {e.Expired: "expired", e.Evicted: "evicted", e.CursorMoved: "skipped"}
"""The effects that move a subscription past messages without acks, and what becomes of these."""

LOST: tuple[Outcome, ...] = tuple(MOVED.values())
NOT_STORED: tuple[Published, ...] = ("duplicate", "refused", "quarantined", "not sent")


def deletes(cause: str) -> bool:
    """Whether a topic's or a subscription's event with this cause ends it. A later one of its name is another one."""
    return cause.startswith("deleted")


def loses_writes(cause: str) -> bool:
    """Whether a topic closes, so that writes which a fault put off are never answered."""
    return deletes(cause) or cause.startswith("unloaded")


_PASSES = ("skipped", "backlog cleared", "truncate", "passed on the source", "ledger trimmed")


def resets(move: Effect) -> bool:
    """Whether a cursor moved to where a client or an administrator wants it: whatever comes after is unacked again."""
    return isinstance(move, e.CursorMoved) and not move.cause.startswith(_PASSES)


Change = Literal[
    "lost newly", "saved", "lost earlier", "lost later", "lost by another rule", "delivered later", "redelivered",
    "other redelivery count", "unknown",
]  # fmt: skip
"""``lost``: the message left the subscription's backlog without an ack. ``delivered later``: or not within the log.
``redelivered``: sent another number of times. ``other redelivery count``: sent as often, but its highest redelivery count, after which a
client may give it to a dead-letter topic, is another one. ``unknown``: what became of it depends on what clients would have done, for
example because the message was refused; or one run has acked what another has not."""

CHANGES: tuple[Change, ...] = Change.__args__  # type: ignore[attr-defined]

CHANGE_COLUMNS: dict[Change, str] = {change: change.replace(" ", "_") for change in CHANGES}
"""The column of a summary that counts each change."""
