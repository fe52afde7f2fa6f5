"""What operators do: policies, and subscriptions that are moved or deleted, as calls of Pulsar's admin API."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from schemas.undecodable import UNDECODABLE
from streaming.cli.console import say, say_json
from streaming.cli.errors import FAILED, expected_errors
from streaming.cli.options import LARGEST, KafkaConfigFile, credentials, position

if TYPE_CHECKING:
    from streaming.server.engine import Engine

policy_app = typer.Typer(
    help="Set, get and unset policies, as pulsar-admin does.", no_args_is_help=True, add_completion=False
)


class QuotaTypeChoice(StrEnum):
    """The types of backlog quotas."""

    destination_storage = "destination_storage"
    message_age = "message_age"


class QuotaPolicyChoice(StrEnum):
    """What happens beyond a backlog quota."""

    producer_request_hold = "producer_request_hold"
    producer_exception = "producer_exception"
    consumer_backlog_eviction = "consumer_backlog_eviction"


QueryIngressOption = Annotated[
    str | None,
    typer.Option(help="The Kafka topic from which a running query reads commands: kafka://HOST:PORT/TOPIC."),
]
Responses = Annotated[
    str | None,
    typer.Option(
        help="The query's --responses topic, to wait for the response. Without it, nothing tells whether the call "
        "succeeded."
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log", help="Append to this command log instead: an existing or new .jsonl file."),
]
Where = Annotated[
    str, typer.Argument(metavar="WHERE", help="A namespace, TENANT/NAMESPACE, or a full topic name.")
]
TopicArgument = Annotated[str, typer.Argument(help="A topic. persistent://public/default/ can be omitted.")]
SubscriptionArgument = Annotated[str, typer.Argument(help="A subscription of the topic.")]


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a call goes."""

    ingress: str | None
    responses: str | None
    kafka_config: Path | None
    log: Path | None

    def __post_init__(self) -> None:
        if (self.ingress is None) == (self.log is None):
            raise typer.BadParameter("give either the --ingress of a running query or a --log")
        if self.responses is not None and self.ingress is None:
            raise typer.BadParameter("--responses belongs to a query: give its --ingress as well")


def _call(target: _Target, method: str, path: str, body: Any = None) -> None:
    """Make a call, print what is answered, and end with an exit code of 1 if it is refused."""
    from sinks.storage import BadUrl
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.topics import NoSuchTopic
    from streaming.kafka.url import KafkaUrlError
    from streaming.kafka.writer import NotWritten
    from streaming.log.table import LogError
    from streaming.server.engine import EngineStopped

    with expected_errors(
        BadUrl, KafkaConfigError, KafkaUnreachable, KafkaUrlError, LogError, NoSuchTopic,
        failed=(EngineStopped, NotWritten),
    ):  # fmt: skip
        if target.log is not None:
            status, answer = asyncio.run(_on_log(target.log, method, path, body))
        elif target.responses is not None:
            status, answer = asyncio.run(_on_query(target, method, path, body))
        else:
            _write(target, method, path, body)
            say(f"written to {target.ingress}; the query responds in its --responses topic, if it has one")
            return
    if status >= 400:
        say(f"magnetar: {status} {_reason(answer)}", err=True)
        raise typer.Exit(FAILED)
    if answer:
        say_json(answer.decode())


def _reason(answer: bytes) -> str:
    try:
        found = msgspec.json.decode(answer)
    except UNDECODABLE:
        return answer.decode(errors="replace")
    return str(found.get("reason", found) if isinstance(found, dict) else found)


async def _on_log(file: Path, method: str, path: str, body: Any) -> tuple[int, bytes]:
    from schemas.commands import to_json
    from streaming.log.files import appending
    from streaming.log.table import LOGICAL, log_table
    from streaming.server.admin.call import call
    from streaming.server.log_engine import LogEngine

    with nullcontext() if method == "GET" else appending(file) as append:
        async with LogEngine(file) as engine:
            status, answer = await call(engine, method, path, body)
        if append is not None and status < 400 and engine.accepted:
            records = log_table(
                LOGICAL,
                timestamp=[engine.now()] * len(engine.accepted),
                topic=[topic for topic, _ in engine.accepted],
                value=[to_json(command) for _, command in engine.accepted],
            )
            append(records)
    return status, answer


async def _on_query(target: _Target, method: str, path: str, body: Any) -> tuple[int, bytes]:
    from streaming.kafka.url import KafkaUrl
    from streaming.server.admin.call import call
    from streaming.server.query_engine import QueryEngine

    assert target.ingress is not None
    assert target.responses is not None
    engine: Engine
    async with QueryEngine(
        KafkaUrl.parse(target.ingress),
        KafkaUrl.parse(target.responses),
        f"operator-{time.time_ns():x}",
        config=credentials(target.kafka_config),
    ) as engine:
        return await call(engine, method, path, body)


def _write(target: _Target, method: str, path: str, body: Any) -> None:
    from schemas.commands import Admin, to_json
    from streaming.broker.admin_requests import topic_of
    from streaming.kafka.topics import existing_topic
    from streaming.kafka.url import KafkaUrl
    from streaming.kafka.writer import CommandWriter

    assert target.ingress is not None
    url, config = KafkaUrl.parse(target.ingress), credentials(target.kafka_config)
    existing_topic(url, "`magnetar run` with this --ingress creates it: start that first", config)
    failures: list[Exception] = []
    writer = CommandWriter(url, config, failures.append)
    try:
        value = to_json(Admin(method=method, path=path, body=body))  # type: ignore[arg-type]
        now = time.time_ns() // 1_000_000
        topic = topic_of(path)
        if topic is None:
            writer.send_to_all([value], now).result()
        else:
            writer.send(topic, value, now)
    finally:
        writer.close()
    if failures:
        raise failures[0]


# -- names and units


def _topic_path(name: str) -> str:
    """The path of a topic's calls. Raises `typer.BadParameter`."""
    from streaming.broker.admin_requests import topic_path

    if "://" not in name:
        name = f"persistent://{name}" if name.count("/") == 2 else f"persistent://public/default/{name}"
    domain, _, rest = name.partition("://")
    parts = rest.split("/", 2)
    if domain not in ("persistent", "non-persistent") or len(parts) != 3 or not all(parts):
        raise typer.BadParameter(f"{name!r}: expected a topic, such as persistent://public/default/orders")
    return topic_path(name)


def _level(where: str) -> tuple[str, bool]:
    """The path of a namespace's or a topic's policies, and whether it is a topic. Raises `typer.BadParameter`."""
    if "://" in where:
        return _topic_path(where), True
    parts = where.split("/")
    if len(parts) != 2 or not all(parts):
        raise typer.BadParameter(
            f"{where!r}: expected TENANT/NAMESPACE, or a full topic name with persistent://"
        )
    return "/namespaces/" + "/".join(quote(each, safe="") for each in parts), False


def _policy_path(name: str, where: str, *, get: bool = False) -> str:
    """The path of a policy, whose name may be written as pulsar-admin does, such as message-ttl. Raises `typer.BadParameter`."""
    from streaming.answers.history.folders import listed
    from streaming.broker.policies.admin_calls import NAMESPACE_POLICIES, TOPIC_POLICIES

    level, is_topic = _level(where)
    known = TOPIC_POLICIES if is_topic else NAMESPACE_POLICIES
    wanted = name.replace("-", "").lower()
    found = next((each for each in known if each.lower() == wanted), None)
    if found is None:
        of = "topic" if is_topic else "namespace"
        raise typer.BadParameter(f"{name!r} is not a policy of a {of}: {listed('policy', wanted, known)}")
    return f"{level}/{found}{'Map' if get and found == 'backlogQuota' else ''}"


_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _number(text: str, units: dict[str, int], what: str) -> int:
    """A number with a unit, or -1. Raises `typer.BadParameter`."""
    number, unit = text, 1
    for name, factor in units.items():
        if text[-1:] in (name, name.swapcase() if units is _SIZES else name):
            number, unit = text[:-1], factor
    if text == "-1":
        return -1
    if not (number.isascii() and number.isdigit() and len(number) <= 15):
        raise typer.BadParameter(f"{text!r}: expected {what}")
    return int(number) * unit


def _bytes(text: str) -> int:
    return _number(text, _SIZES, "a size in bytes, or such as 512K, 10M, 16G or 3T; -1 is unlimited")


def _seconds(text: str) -> int:
    return _number(text, _TIMES, "a time in seconds, or such as 100m, 3h, 2d or 5w; -1 is unlimited")


def _whole(number: int, unit: int, what: str) -> int:
    if 0 < number < unit:
        raise typer.BadParameter(
            f"retention has whole {what}: give at least one, or 0 to keep nothing for it"
        )
    return number if number < 0 else number // unit


# -- commands


@policy_app.command("set")
def set_command(
    name: Annotated[str, typer.Argument(help="The policy, by its name in the REST API or in pulsar-admin.")],
    where: Where,
    value: Annotated[
        str | None, typer.Argument(help="The value as JSON. message-ttl also takes a time, such as 3h.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="retention: how much, such as 10M or 16G."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option("--time", help="retention: how long, such as 100m or 3h."),
    ] = None,
    limit: Annotated[str | None, typer.Option(help="backlog-quota: the maximum size, such as 10M.")] = None,
    limit_time: Annotated[
        str | None, typer.Option(help="backlog-quota: the maximum age, such as 3600 (seconds) or 1h.")
    ] = None,
    quota_policy: Annotated[
        QuotaPolicyChoice | None,
        typer.Option("--policy", help="backlog-quota: what happens when the limit is exceeded."),
    ] = None,
    quota_type: Annotated[
        QuotaTypeChoice | None,
        typer.Option("--type", help="backlog-quota: its type. The default is destination_storage."),
    ] = None,
    ingress: QueryIngressOption = None,
    responses: Responses = None,
    kafka_config: KafkaConfigFile = None,
    log: LogFile = None,
) -> None:
    """Set a policy of a namespace or a topic."""
    target, path = _Target(ingress, responses, kafka_config, log), _policy_path(name, where)
    policy = path.rpartition("/")[2]
    of_retention, of_quota = (size, duration), (limit, limit_time, quota_policy, quota_type)
    if policy != "retention" and any(each is not None for each in of_retention):
        raise typer.BadParameter("--size and --time are options of retention")
    if policy != "backlogQuota" and any(each is not None for each in of_quota):
        raise typer.BadParameter("--limit, --limit-time, --policy and --type are options of backlog-quota")
    body: Any
    if value is not None:
        if any(each is not None for each in (*of_retention, *of_quota)):
            raise typer.BadParameter("give either the value or options")
        body = _seconds(value) if policy == "messageTTL" else _json(value)
    elif policy == "retention":
        if size is None or duration is None:
            raise typer.BadParameter("retention needs --size and --time")
        body = {
            "retentionTimeInMinutes": _whole(_seconds(duration), 60, "minutes"),
            "retentionSizeInMB": _whole(_bytes(size), 1 << 20, "MB"),
        }
    elif policy == "backlogQuota":
        if quota_policy is None:
            raise typer.BadParameter("backlog-quota needs --policy")
        given = {"limitSize": limit and _bytes(limit), "limitTime": limit_time and _seconds(limit_time)}
        body = {key: each for key, each in given.items() if each is not None} | {"policy": quota_policy.value}
        path += f"?backlogQuotaType={(quota_type or QuotaTypeChoice.destination_storage).value}"
    else:
        raise typer.BadParameter(f"{name} needs a value")
    _call(target, "POST", path, body)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNDECODABLE as error:
        raise typer.BadParameter(f"{text!r} is not JSON: {error}") from None


@policy_app.command("get")
def get_command(
    name: Annotated[str, typer.Argument(help="The policy, by its name in the REST API or in pulsar-admin.")],
    where: Where,
    applied: Annotated[
        bool, typer.Option(help="For a topic: the effective value, whichever level sets it.")
    ] = False,
    ingress: QueryIngressOption = None,
    responses: Responses = None,
    kafka_config: KafkaConfigFile = None,
    log: LogFile = None,
) -> None:
    """Print a policy of a namespace or a topic as JSON, or nothing if it is not set."""
    target, path = _Target(ingress, responses, kafka_config, log), _policy_path(name, where, get=True)
    if ingress is not None and responses is None:
        raise typer.BadParameter("to receive the response, give the query's --responses")
    _call(target, "GET", path + "?applied=true" * applied)


@policy_app.command("unset")
def unset_command(
    name: Annotated[str, typer.Argument(help="The policy, by its name in the REST API or in pulsar-admin.")],
    where: Where,
    quota_type: Annotated[
        QuotaTypeChoice | None,
        typer.Option("--type", help="backlog-quota: its type. The default is destination_storage."),
    ] = None,
    ingress: QueryIngressOption = None,
    responses: Responses = None,
    kafka_config: KafkaConfigFile = None,
    log: LogFile = None,
) -> None:
    """Remove a policy from a namespace or a topic, so that the next level's value applies."""
    target, path = _Target(ingress, responses, kafka_config, log), _policy_path(name, where)
    if path.endswith("/backlogQuota"):
        path += f"?backlogQuotaType={(quota_type or QuotaTypeChoice.destination_storage).value}"
    elif quota_type is not None:
        raise typer.BadParameter("--type is an option of backlog-quota")
    _call(target, "DELETE", path)


def _of_subscription(topic: str, subscription: str, call: str = "") -> str:
    return f"{_topic_path(topic)}/subscription/{quote(subscription, safe='')}{call}"


def skip_command(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    count: Annotated[int, typer.Argument(min=1, max=LARGEST, help="How many messages.")],
    ingress: QueryIngressOption = None,
    responses: Responses = None,
    kafka_config: KafkaConfigFile = None,
    log: LogFile = None,
) -> None:
    """Skip messages of a subscription."""
    target = _Target(ingress, responses, kafka_config, log)
    _call(target, "POST", _of_subscription(topic, subscription, f"/skip/{count}"))


def clear_backlog_command(
    where: Where,
    subscription: Annotated[
        str | None, typer.Argument(help="A subscription. For a namespace, the default is all.")
    ] = None,
    ingress: QueryIngressOption = None,
    responses: Responses = None,
    kafka_config: KafkaConfigFile = None,
    log: LogFile = None,
) -> None:
    """Clear a subscription's backlog on a topic, or on every topic of a namespace."""
    target, (path, is_topic) = _Target(ingress, responses, kafka_config, log), _level(where)
    if not is_topic:
        path += "/clearBacklog" if subscription is None else f"/clearBacklog/{quote(subscription, safe='')}"
    elif subscription is None:
        raise typer.BadParameter("give the topic's subscription as well")
    else:
        path = _of_subscription(where, subscription, "/skip_all")
    _call(target, "POST", path)


def expire_command(
    topic: TopicArgument,
    subscription: Annotated[str | None, typer.Argument(help="A subscription. The default is all.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Messages older than this, such as 3600 (seconds) or 1h.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--position", metavar="LEDGER:ENTRY", help="Messages up to this position.")
    ] = None,
    ingress: QueryIngressOption = None,
    responses: Responses = None,
    kafka_config: KafkaConfigFile = None,
    log: LogFile = None,
) -> None:
    """Expire old messages of a subscription."""
    target = _Target(ingress, responses, kafka_config, log)
    if (older_than is None) == (at is None):
        raise typer.BadParameter("give either --older-than or --position")
    body: Any = None
    if older_than is not None and subscription is None:
        path = f"{_topic_path(topic)}/all_subscription/expireMessages/{_seconds(older_than)}"
    elif subscription is None:
        raise typer.BadParameter("--position needs a subscription")
    elif older_than is not None:
        path = _of_subscription(topic, subscription, f"/expireMessages/{_seconds(older_than)}")
    else:
        path, body = _of_subscription(topic, subscription, "/expireMessages"), _message_id(at)
    _call(target, "POST", path, body)


def _message_id(at: str | None) -> dict[str, int]:
    found = position(at or "")
    return {"ledgerId": found.ledger, "entryId": found.entry, "partitionIndex": -1}


def reset_cursor_command(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    back: Annotated[
        str | None, typer.Option("--time", help="To what was published this long ago, such as 1h.")
    ] = None,
    timestamp: Annotated[
        int | None,
        typer.Option(min=0, max=LARGEST, help="To what was published at this time (ms since the epoch)."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--position", metavar="LEDGER:ENTRY", help="To the message at this position."),
    ] = None,
    ingress: QueryIngressOption = None,
    responses: Responses = None,
    kafka_config: KafkaConfigFile = None,
    log: LogFile = None,
) -> None:
    """Move a subscription's cursor backward or forward."""
    target = _Target(ingress, responses, kafka_config, log)
    if sum(each is not None for each in (back, timestamp, at)) != 1:
        raise typer.BadParameter("give one of --time, --timestamp and --position")
    if at is not None:
        _call(target, "POST", _of_subscription(topic, subscription, "/resetcursor"), _message_id(at))
        return
    if back is not None:
        if log is not None:
            raise typer.BadParameter(
                "--time counts back from now, but a log has its own time: give --timestamp"
            )
        timestamp = time.time_ns() // 1_000_000 - _seconds(back) * 1000
    _call(target, "POST", _of_subscription(topic, subscription, f"/resetcursor/{timestamp}"))


def unsubscribe_command(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    force: Annotated[bool, typer.Option(help="Disconnect its consumers first.")] = False,
    ingress: QueryIngressOption = None,
    responses: Responses = None,
    kafka_config: KafkaConfigFile = None,
    log: LogFile = None,
) -> None:
    """Delete a subscription."""
    target = _Target(ingress, responses, kafka_config, log)
    _call(target, "DELETE", _of_subscription(topic, subscription) + "?force=true" * force)


def unload_command(
    where: Where,
    ingress: QueryIngressOption = None,
    responses: Responses = None,
    kafka_config: KafkaConfigFile = None,
    log: LogFile = None,
) -> None:
    """Unload a topic, or all topics of a namespace. Their clients have to reconnect."""
    target = _Target(ingress, responses, kafka_config, log)
    _call(target, "PUT", f"{_level(where)[0]}/unload")
