"""Shadow topics: the entries of another topic, each at the position that it has there (mirrors `ShadowManagedLedgerImpl`;
docs/rules/ledgers.md §15).

The source is not a topic of this broker. Only its entries come here, by SENDs that name their positions. So a ledger is closed when
an entry of the next one comes, never because it is full or old.
"""

from streaming.broker.context import Context
from streaming.broker.persistent.cleanup.ledger_rollover import roll_over
from streaming.broker.persistent.topic import PersistentTopic
from streaming.broker.position import Position

NEXT_LEDGER = "the source went on in another ledger"
"""The cause of a rollover."""

LARGEST_LEDGER = 1 << 62
"""The largest ledger id that a source may have. Beyond it, a topic needs some for the ledgers that it opens itself."""


def refusal(topic: PersistentTopic, source: Position) -> str | None:
    """Why an entry can't have the position `source`; None: it can."""
    ledger = topic.ledger
    current = Position(ledger.current, ledger.current_entries)
    if topic.terminated or not current.ledger <= source.ledger <= LARGEST_LEDGER:
        return f"{source} can't follow {ledger.last_confirmed}"
    if source.entry != (current.entry if source.ledger == current.ledger else 0):
        return f"{source} can't follow {ledger.last_confirmed}: an entry between them is missing, or it is stored"
    return None


def follow(ctx: Context, topic: PersistentTopic, ledger: int) -> None:
    """Go on in a ledger of the source, if the topic is not there yet."""
    if ledger > topic.ledger.current:
        roll_over(ctx, topic, NEXT_LEDGER, ledger)
