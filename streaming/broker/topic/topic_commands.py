"""The commands on a topic: which of them create it, and how they are refused (mirrors `ServerCnx`)."""

from schemas import commands as c
from schemas.effects import Error, SendError
from streaming.broker import admin_requests
from streaming.broker.context import Context

TopicCommand = (
    c.Publish | c.Send | c.Flow | c.Ack | c.Producer | c.CloseProducer | c.Subscribe | c.CloseConsumer | c.Unsubscribe
    | c.RedeliverUnacknowledgedMessages | c.Seek | c.GetLastMessageId | c.Admin | c.Fault | c.Mirror
)  # fmt: skip


def creates_topic(command: TopicCommand) -> bool:
    """Does the command create a missing topic? Other commands are answered as if the topic were empty."""
    match command:
        case c.Publish() | c.Producer() | c.Fault():
            return True
        case c.Subscribe():
            return command.force_topic_creation
        case c.Admin():
            return admin_requests.creates_topic(command)
    return False


def refuse(ctx: Context, name: str, command: TopicCommand, error: str, cause: str) -> bool:
    """Answer a request whose topic does not exist or must not be created. False: this command gets no answer."""
    match command:
        case c.Producer() | c.Subscribe():
            ctx.emit(Error(name, command.connection, command.request_id, error, cause))
        case c.Publish():
            ctx.emit(SendError(name, "", None, command.producer, command.sequence_id, error, cause))
        case _:
            return False
    return True
