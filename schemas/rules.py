"""What values of commands and of output rows are, beyond their types: the source of the expectation suites.

``make docs`` writes ``schemas/expectations`` from these tables and from the types of commands and effects. A command that
breaks a rule is quarantined; an output row that breaks one is a mistake of Magnetar's. What a broker answers with an error
is no matter of these rules.
"""

from typing import NamedTuple

from schemas.effects import KINDS
from schemas.units import LATEST_TIME


class Rule(NamedTuple):
    """A column's bounds: of the number, or of the length of a text. `kinds`: only there. None: wherever the column is.

    `form`: a regular expression that a text must match.
    """

    column: str
    why: str
    least: int | None = None
    most: int | None = None
    kinds: tuple[str, ...] | None = None
    form: str | None = None


_IDS = "ids are unsigned in the protocol"
_NAMES = "names are kept in the state: they are bounded"
_KEPT = "it is kept in the state: it is bounded"
_WORK = "a command's work is bounded"
_MILLIS = "epoch milliseconds: later than the year 5138 is another unit"
_COUNT = "it can't be negative"

RECORD_RULES = (Rule("topic", "topic names are kept in the state: they are bounded", most=4096),)
"""What holds for every record, whatever its command."""

INPUT_RULES = (
    Rule(
        "producer", "a name is needed, and names are kept in the state: they are bounded", least=1, most=1024
    ),
    Rule("sequence_id", _IDS, least=0, kinds=("PUBLISH",)),
    Rule("connection", _NAMES, most=1024),
    Rule("client_version", _NAMES, most=1024),
    Rule("protocol_version", _COUNT, least=0),
    Rule("auth_method_name", _NAMES, most=1024),
    Rule("auth_data.size", _KEPT, most=1 << 20),
    Rule("feature_flags.count", _WORK, most=1000),
    Rule("producer_id", _IDS, least=0),
    Rule("metadata.producer_name", _NAMES, most=1024),
    Rule("metadata.publish_time", _MILLIS, least=0, most=LATEST_TIME),
    Rule("metadata.num_messages_in_batch", _COUNT, least=0),
    Rule("metadata.uncompressed_size", _COUNT, least=0),
    Rule("metadata.chunk_id", _COUNT, least=0),
    Rule("metadata.num_chunks_from_msg", "there is at least one", least=1),
    Rule("metadata.total_chunk_msg_size", _COUNT, least=0),
    Rule("metadata.uuid", "the name of a producer and a sequence id: it is kept in the state", most=2048),
    Rule(
        "payload.size",
        "far over what a broker takes: its own limit (maxMessageSize) is answered, this one isn't",
        most=1 << 27,
    ),
    Rule("publish_time", _MILLIS, least=0, most=LATEST_TIME),
    Rule("event_time", _MILLIS, least=0, most=LATEST_TIME),
    Rule("deliver_at_time", _COUNT, least=0),
    Rule("subscription", _NAMES, most=1024),
    Rule("consumer_id", _IDS, least=0),
    Rule("messagePermits", _WORK, most=10**6),
    Rule("message_id.count", _WORK, most=10**6),
    Rule("request_id", _IDS, least=0),
    Rule("producer_name", _NAMES, most=1024),
    Rule("epoch", _COUNT, least=0),
    Rule(
        "topic_epoch",
        "epochs are unsigned in the protocol, and rise by one with each owner: none may reach the last one of 64 bits",
        least=0,
        most=2**53 - 1,
    ),
    Rule("initial_subscription_name", _NAMES, most=1024),
    Rule("consumer_name", _NAMES, most=1024),
    Rule("start_message_rollback_duration_sec", _COUNT, least=0),
    Rule("metadata.count", _WORK, most=1000),
    Rule("subscription_properties.count", _WORK, most=1000),
    Rule("keySharedMeta.hashRanges.count", _WORK, most=65536),
    Rule("schema.name", _NAMES, most=1024),
    Rule("schema.schema_data.size", _KEPT, most=1 << 20),
    Rule("schema.type", _NAMES, most=1024),
    Rule("schema.properties.count", _WORK, most=1000),
    Rule("path", "a path below /admin/v2", least=1, most=4096),
    Rule("path", "a path below /admin/v2", form="^/"),
    Rule("settings.count", _WORK, most=1000),
    Rule("count", _WORK, most=10**6),
    Rule("schema_version.size", _KEPT, most=64),
    Rule("advertised_listener_name", _NAMES, most=1024),
    Rule("properties.count", _WORK, most=1000, kinds=("LOOKUP",)),
    Rule("message_ids.count", _WORK, most=10**6),
    Rule("message_publish_time", "epoch milliseconds; a time after all messages is meant", least=0),
)
"""The values of commands, in the order in which a refusal tells of them."""

_LEDGER = "ledgers are numbered from 1; 0 is before the first"
_FIRST = "−1 is before the first"
_NONE = "−1 stands for none"
_NUMBERED = "ledgers and entries are numbered from 0"
_NAMED = "it has a name"
_MAYBE_NONE = ("ADMIN_RESPONSE", "GET_LAST_MESSAGE_ID_RESPONSE", "SEND_RECEIPT")
_STORED = ("LEDGER_CLOSED", "LEDGER_DELETED")
_ENTRIES = ("MESSAGE", "SEND_RECEIPT", "COMPACTED_ENTRY")

OUTPUT_RULES = (
    Rule("partition", "ingress partitions are numbered from 0", least=0),
    Rule("offset", "offsets are numbered from 0", least=0),
    Rule("ordinal", "effects are numbered from 0", least=0),
    Rule("clock", _COUNT, least=0),
    Rule("topic", "a topic has a name", least=1),
    Rule("producer_name", _NAMED, least=1),
    Rule("subscription", _NAMED, least=1),
    Rule("ledger_id", _NONE, least=-1, kinds=_MAYBE_NONE),
    Rule("ledger_id", _NUMBERED, least=0, kinds=("MESSAGE", "COMPACTED_ENTRY", *_STORED)),
    Rule("entry_id", _NONE, least=-1, kinds=_MAYBE_NONE),
    Rule("entry_id", _NUMBERED, least=0, kinds=("MESSAGE", "COMPACTED_ENTRY")),
    Rule("before_ledger", _LEDGER, least=0),
    Rule("before_entry", _FIRST, least=-1),
    Rule("after_ledger", _LEDGER, least=0),
    Rule("after_entry", _FIRST, least=-1),
    Rule("entries", _COUNT, least=0, kinds=("EVICTED", "EXPIRED", *_STORED)),  # a seek moves back, too
    Rule("size", _COUNT, least=0, kinds=_STORED),
    Rule("size", "an entry has a header", least=10, kinds=_ENTRIES),
    Rule("messages", _COUNT, least=0, kinds=_ENTRIES),
    Rule("redelivery_count", _COUNT, least=0),
    Rule("publish_time", _COUNT, least=0),
    Rule("rule", _NAMED, least=1),
    Rule("cause", "every row tells why", least=1),
)
"""The values of output rows. Besides, what is not optional in `schemas.effects` is given, and errors are the protocol's."""

NOT_BELOW = (
    ("after_ledger", "before_ledger", "a mark-delete position only moves on", ("EVICTED", "EXPIRED")),
)
"""Pairs of columns whose first is never below the second, why, and in which kinds."""

OUTPUT_KINDS = {name: effect for effect, name in KINDS.items()}
"""Kind of output row → its effect."""
