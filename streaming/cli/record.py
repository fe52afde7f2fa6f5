"""`magnetar record`, `magnetar capture` and `magnetar mirror`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from errno import EINVAL
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.printable import counted
from streaming.cli.console import say
from streaming.cli.errors import expected_errors
from streaming.cli.options import MOST_PARTITIONS, KafkaConfigFile, credentials, milliseconds
from streaming.runtime.signals import stop_signals

if TYPE_CHECKING:
    import ssl


class PayloadsChoice(StrEnum):
    """What a log has of payloads."""

    keep = "keep"
    hash = "hash"
    drop = "drop"


_PAYLOADS_HELP = (
    "What the log keeps of payloads: all bytes, bytes derived from their hash, or zeros. Sizes stay exact."
)

PayloadsOption = Annotated[PayloadsChoice, typer.Option(help=_PAYLOADS_HELP)]
ServiceUrl = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="The real Pulsar: pulsar://HOST:PORT of a broker or a proxy, or pulsar+ssl://HOST:PORT. May name several "
        "brokers, and one that can be reached is used: pulsar://HOST:PORT,HOST:PORT. Without a port: 6650, or 6651 with TLS.",
    ),
]
AdminUrl = Annotated[
    str,
    typer.Option(
        metavar="URL", help="Its admin REST API. May name several brokers: http://HOST:PORT,HOST:PORT."
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        help="A PEM file with the authorities that sign the cluster's certificates. The default is the system's authorities."
    ),
]
TokenFile = Annotated[Path | None, typer.Option(help="A file with a token (JWT) for the cluster.")]


def record_command(
    out: Annotated[Path, typer.Argument(metavar="LOG_DIR", help="A folder for the recording.")],
    to: ServiceUrl = "pulsar://localhost:6650",
    admin_to: AdminUrl = "http://localhost:8080",
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where clients of the binary protocol connect. Port 0 picks a free port.",
        ),
    ] = "127.0.0.1:6651",
    admin_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where clients of the admin API connect. Port 0 picks a free port."
        ),
    ] = "127.0.0.1:8081",
    payloads: PayloadsOption = PayloadsChoice.keep,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen on an address that other machines reach, without TLS, and pass admin calls that a page in a browser may have sent.",
        ),
    ] = False,
) -> None:
    """Record the traffic between unmodified clients and a real Pulsar, until Ctrl-C or SIGTERM.

    LOG_DIR/trace.jsonl has every frame and admin call, for `magnetar conform`. At the end it is compared, and becomes
    LOG_DIR/commands.jsonl, for `magnetar replay`.
    """
    import asyncio

    from streaming.cli.traces import explained_differences, first_difference
    from streaming.record.proxy import BadBrokerUrl, broker_address
    from streaming.record.record import command_log, record
    from streaming.record.recording import COMMANDS, TRACE, RecordingExists
    from streaming.record.rest import BadAdminUrl, Rest
    from streaming.server.server import Address, ListenError, bound
    from streaming.traces.trace import TraceError

    def started(service_url: str, admin_url: str, missing: Iterable[str]) -> None:
        for each in missing:
            say(f"magnetar: not known: {each}", err=True)
        say(f"magnetar: recording {service_url} and {admin_url}; Ctrl-C stops it", err=True)

    with (
        expected_errors(BadAdminUrl, BadBrokerUrl, RecordingExists, ListenError, TraceError),
        stop_signals() as stop,
    ):
        broker_address(to)
        token = token_of(token_file)
        rest = Rest(admin_to, authorization(token), tls_of(tls_ca))
        listeners = []
        for option, text in (("--listen", listen), ("--admin-listen", admin_listen)):
            address = Address.parse(text)
            if not (address.is_loopback or insecure):
                raise ListenError(
                    f"{option} {text}: other machines reach this address, and there is no TLS: listen on 127.0.0.1, or add "
                    "--insecure if your network protects it"
                )
            if address.host in ("0.0.0.0", "::"):
                raise ListenError(f"{option} {text}: name the address that clients connect to")
            listeners.append(bound(address, option))
        out.mkdir(parents=True, exist_ok=True)
        with expected_errors(RecordingExists, failed=(OSError,)):
            asyncio.run(
                record(
                    out,
                    to,
                    rest,
                    (listeners[0], listeners[1]),
                    stop,
                    started,
                    payloads.value,
                    insecure=insecure,
                )
            )
        imported, verdict = command_log(out / TRACE)
    say(f"{counted(sum(imported.commands.values()), 'command')} -> {out / COMMANDS}")
    explained_differences(verdict)
    frames = counted(verdict.frames, "frame")
    if not verdict.frames:
        say("record: no frame passed: do the clients connect to the address of --listen?")
    elif verdict.equal:
        say(f"record: {frames}, equal")
    else:
        first_difference(verdict)
        say(
            f"record: {frames}, {counted(len(verdict.differences), 'difference')}; see magnetar conform {out / TRACE}"
        )


def capture_command(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC…",
            help="Topics (a partitioned topic counts as one), or TENANT/NAMESPACE for all of its topics.",
        ),
    ],
    to: Annotated[Path, typer.Option(metavar="LOG", help="The command log to write: .jsonl or .jsonl.gz.")],
    service_url: ServiceUrl = "pulsar://localhost:6650",
    admin_url: AdminUrl = "http://localhost:8080",
    payloads: PayloadsOption = PayloadsChoice.keep,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
) -> None:
    """Write a command log of what a real Pulsar's topics contain: entries, subscriptions, policies and settings."""
    from streaming.record.capture import UNKNOWN, NotCaptured, capture
    from streaming.record.client import ReadFailed
    from streaming.record.proxy import BadBrokerUrl
    from streaming.record.rest import BadAdminUrl, CallFailed, Rest
    from streaming.traces.trace import TraceError

    with expected_errors(BadAdminUrl, BadBrokerUrl, NotCaptured, TraceError, failed=(CallFailed, ReadFailed)):
        token = token_of(token_file)
        rest = Rest(admin_url, authorization(token), tls_of(tls_ca))
        captured = capture(service_url, rest, topics, to, payloads.value, token)
    for each in captured.missing:
        say(f"magnetar: not in the log: {each}", err=True)
    say(
        f"{counted(captured.topics, 'topic')}, {counted(captured.entries, 'entry')}, {counted(captured.subscriptions, 'subscription')} -> {to}"
    )
    say("The cluster does not expose this, so the log lacks it:")
    for each in UNKNOWN:
        say(f"  {each}")


class EntriesChoice(StrEnum):
    """What a mirror's log has of entries."""

    read = "read"
    sampled = "sampled"


def mirror_command(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC…",
            help="Topics (a partitioned topic counts as one), or TENANT/NAMESPACE for all of its topics, as they come and go.",
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG_DIR", help="Write the log to this folder, as files. Give this or --ingress."
        ),
    ] = None,
    ingress: Annotated[
        str | None,
        typer.Option(
            help="Write the log to this Kafka topic, for a running query: kafka://HOST:PORT/TOPIC. Give this or --to.",
        ),
    ] = None,
    service_url: ServiceUrl = "pulsar://localhost:6650",
    admin_url: AdminUrl = "http://localhost:8080",
    every: Annotated[
        str,
        typer.Option(
            help="How often to look at a topic, such as 10s. One that does not change is looked at less often."
        ),
    ] = "10s",
    rate: Annotated[
        float, typer.Option(min=1, max=10_000, help="The calls of the admin API per second, at most.")
    ] = 50,
    entries: Annotated[
        EntriesChoice,
        typer.Option(
            help="Read the entries, or leave them alone: then entries of the right number and sizes stand for them."
        ),
    ] = EntriesChoice.read,
    payloads: Annotated[
        PayloadsChoice | None,
        typer.Option(help=f"{_PAYLOADS_HELP} The default is keep. Not with --entries sampled."),
    ] = None,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
    kafka_config: KafkaConfigFile = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_PARTITIONS,
            help="The number of partitions, if the Kafka topic has to be created. The default is 4.",
        ),
    ] = None,
) -> None:
    """Follow a live Pulsar: write a command log of what happens to its topics, until Ctrl-C or SIGTERM.

    Nothing changes on the cluster: entries are read by readers, everything else is asked for with GETs. A start with the same log goes on
    where it ends.
    """
    from sinks.lock import InUse
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.url import KafkaUrl, KafkaUrlError
    from streaming.kafka.writer import NotWritten
    from streaming.log.partition import PARTITIONS
    from streaming.mirror.going_on import mirror_on
    from streaming.mirror.journal import BadLog, KafkaLog, LogFolder
    from streaming.mirror.mirror import ClusterMirror
    from streaming.mirror.source import NotMirrored
    from streaming.record.proxy import BadBrokerUrl, broker_address
    from streaming.record.rest import BadAdminUrl, CallFailed, Rest

    if (to is None) == (ingress is None):
        raise typer.BadParameter("give --to LOG_DIR or --ingress kafka://HOST:PORT/TOPIC")
    if to is not None and (kafka_config is not None or partitions is not None):
        raise typer.BadParameter("--kafka-config and --partitions are for --ingress")
    if entries == EntriesChoice.sampled and payloads is not None:
        raise typer.BadParameter(
            "--payloads is for entries that are read: with --entries sampled, nobody reads any, and their payloads are zeros. Omit it"
        )
    interval = milliseconds(every) / 1000
    if not 1 <= interval <= 3600:
        raise typer.BadParameter(f"{every!r}: expected 1s to 1h", param_hint="--every")
    with (
        expected_errors(
            BadAdminUrl, BadBrokerUrl, NotMirrored, KafkaUrlError, KafkaConfigError, KafkaUnreachable, InUse, BadLog,
            failed=(CallFailed, NotWritten),
        ),
        stop_signals() as stop,
    ):  # fmt: skip
        broker_address(service_url)
        token = token_of(token_file)
        rest = Rest(admin_url, authorization(token), tls_of(tls_ca), rate)
        journal = (
            LogFolder(to)
            if to is not None
            else KafkaLog(KafkaUrl.parse(ingress or ""), credentials(kafka_config), partitions or PARTITIONS)
        )

        def tell(text: str) -> None:
            say(f"magnetar: {text}", err=True)

        def mirror() -> ClusterMirror:
            return ClusterMirror(
                service_url, rest, topics, journal, token=token, every=interval,
                entries="sampled" if entries == EntriesChoice.sampled else (payloads or PayloadsChoice.keep).value,
                say=tell,
            )  # fmt: skip

        try:
            what = counted(len(mirror().find().topics), "topic")
        except CallFailed:  # the mirror waits for its cluster, but a new one may have the wrong URL
            if not journal.goes_on():
                raise
            what = ", ".join(topics)
        said = f"mirroring {what} of {rest.url} into {to or ingress}; Ctrl-C stops it"
        done = mirror_on(journal, mirror, stop, tell, said)
    say(
        f"{counted(done.topics, 'topic')}, {done.entries:,} new entries, {counted(done.records, 'record')}, "
        f"{counted(done.calls, 'call')} of the admin API -> {to or ingress}"
    )


def tls_of(authorities: Path | None) -> ssl.SSLContext | None:
    """Whose signatures count for a cluster's certificates. None: those of the system's authorities. Raises `typer.BadParameter`."""
    if authorities is None:
        return None
    import ssl

    from sinks.small_files import read_small

    try:
        read_small(authorities)
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:  # an ssl.SSLError is one
        raise typer.BadParameter(f"{authorities}: {error.strerror or error}", param_hint="--tls-ca") from None


def token_of(file: Path | None) -> Callable[[], str | None]:
    """The token in a file, read anew each time, so that another one may take its place. While the file has none, it is the one before.
    Raises OSError if there is none yet."""
    if file is None:
        return lambda: None
    last = _read_token(file)

    def token() -> str:
        nonlocal last
        with suppress(OSError):
            last = _read_token(file) or last
        return last

    return token


def _read_token(file: Path) -> str:
    from sinks.small_files import read_small_text

    token = read_small_text(file).strip()
    if not token.isascii() or any(not " " < each < "\x7f" for each in token):
        raise OSError(EINVAL, "the token has a line break, or another character that no token has", str(file))
    return token


def authorization(token: Callable[[], str | None]) -> Callable[[], dict[str, str]]:
    """The headers of calls with a token."""
    return lambda: {} if (now := token()) is None else {"Authorization": f"Bearer {now}"}
