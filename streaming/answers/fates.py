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
