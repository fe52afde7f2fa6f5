"""`magnetar serve`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.console import say
from streaming.cli.errors import expected_errors
from streaming.cli.options import (
    MAX_AHEAD,
    KafkaConfigFile,
    ProfileChoice,
    RecordsSetAside,
    TopicsSetAside,
    coordinates,
    credentials,
    max_ahead_milliseconds,
    refuse_unused,
    topic_name,
)
from streaming.runtime.signals import is_read, stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schemas.commands import BrokerConfig
    from schemas.coordinates import Coordinates
    from streaming.kafka.config import KafkaConfig
    from streaming.runtime.clock import RealClock
    from streaming.server.clock import HeldClock
    from streaming.server.engine import Engine
    from streaming.server.server import Server

    Run = Callable[..., None]
    """Serves an engine, with its clock if that is held, until the end."""

    Aside = tuple[Sequence[Coordinates], Sequence[str]]
    """The records and the topics that are set aside."""


class EngineType(StrEnum):
    """What folds the commands."""

    embedded = "embedded"
    spark = "spark"


TRIGGER = "0s"


def serve_command(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where clients of the binary protocol connect. Port 0 picks a free port.",
        ),
    ] = "127.0.0.1:6650",
    admin_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the admin REST API and the HTTP lookup are. Port 0 picks a free port.",
        ),
    ] = "127.0.0.1:8080",
    advertised_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="The host that lookups tell clients to connect to (Pulsar's advertisedAddress), if it "
            "differs from --listen: the name of a container or a proxy.",
        ),
    ] = None,
    engine: Annotated[
        EngineType,
        typer.Option(
            help="embedded: the broker runs in this process, and --data holds its log. spark: a Spark "
            "query runs in this process, like `magnetar run`, on the Kafka topics --ingress and "
            "--responses. With these topics but no --engine, the query runs elsewhere."
        ),
    ] = EngineType.embedded,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the log of all commands and for the messages. Given the same folder "
            "again, the broker resumes where it stopped, even after a crash. Without a folder, "
            "everything is in memory and gone when the process ends. With --engine spark: the "
            "folder for the query's checkpoint and store."
        ),
    ] = None,
    fsync: Annotated[
        bool,
        typer.Option(
            help="Respond to a client only once its command is on disk (Pulsar's journalSyncData). "
            "Without this, responses are faster, but a crash of the machine can lose the last "
            "commands; a crash of the process can't."
        ),
    ] = True,
    ingress: Annotated[
        str | None,
        typer.Option(help="The Kafka topic of a query's commands: kafka://HOST:PORT/TOPIC."),
    ] = None,
    responses: Annotated[
        str | None,
        typer.Option(help="The Kafka topic of the query's responses: kafka://HOST:PORT/TOPIC."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="The name of this server among those in front of a query. When it starts, a server "
            "closes the connections that an earlier server of the same name left open. The default "
            "combines the machine's name and the port.",
        ),
    ] = None,
    kafka_config: KafkaConfigFile = None,
    trigger: Annotated[
        str, typer.Option(help="With --engine spark: the shortest time between micro-batches.")
    ] = TRIGGER,
    profile: Annotated[
        ProfileChoice | None,
        typer.Option(
            help="The Pulsar version whose rules and defaults apply; the default is 4.x. In front of a "
            "query, this option and --set replace the configuration in its log; without them it "
            "stays as it is.",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A broker setting, by Pulsar's name; see docs/reference/settings.md. Repeatable.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help="A limit on the resources that clients can use; see docs/operate/security.md. Repeatable.",
        ),
    ] = None,
    test_double: Annotated[
        bool,
        typer.Option(
            "--test-double",
            help="Run as a broker for tests: its clock stands still until a call under /magnetar/v1 "
            "moves it, and other calls inject faults and return to snapshots. --data gets only the "
            "log, and is an empty folder or that of an earlier --test-double.",
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="A PEM file with the server's certificate and its chain (Pulsar's "
            "tlsCertificateFilePath). With it, both ports speak only TLS: pulsar+ssl:// and "
            "https://."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            help="A PEM file with the certificate's private key, unencrypted (Pulsar's tlsKeyFilePath)."
        ),
    ] = None,
    token_secret_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Clients need a token (JWT) that is signed with this secret key (Pulsar's tokenSecretKey): file:///PATH, a "
            "path, or data:;base64,KEY.",
        ),
    ] = None,
    token_public_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Clients need a token (JWT) that is signed with the private key to this public key, RSA or EC, in DER or PEM "
            "(Pulsar's tokenPublicKey).",
        ),
    ] = None,
    quarantine: RecordsSetAside = None,
    quarantine_topic: TopicsSetAside = None,
    max_ahead: Annotated[
        str,
        typer.Option(
            help="How far the machine's clock may jump ahead. After a jump this large or larger, the "
            "broker's time does not follow until the clock is back or the server restarts; off: it "
            "always follows."
        ),
    ] = MAX_AHEAD,
    ready_at: Annotated[
        Path | None,
        typer.Option(
            "--ready-file",
            metavar="FILE",
            help="A new file that is there as long as clients can connect. It has a line of JSON with the `service_url` and the "
            "`admin_url`; -: that line goes to the standard output.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen on an address that other machines reach, although clients need no token. The "
            "admin API then also answers requests from other sites' pages in a browser.",
        ),
    ] = False,
) -> None:
    """Serve Pulsar's clients until Ctrl-C or SIGTERM, as a standalone Pulsar does.

    A client of any language connects to pulsar://localhost:6650, and pulsar-admin to http://localhost:8080. The broker runs in
    this process, or is a Spark query on Kafka: see docs/operate/serve.md.
    """
    import asyncio

    from msgspec import structs

    from streaming.broker.config import BadSetting
    from streaming.runtime.clock import RealClock
    from streaming.server.authentication import TokenKeyError
    from streaming.server.binary import BadLimit, limits
    from streaming.server.logs import logging_in_background
    from streaming.server.protection import check_protection
    from streaming.server.server import (
        ListenError,
        Security,
        advertisable,
        allow_connections,
        give_back_memory,
        serve,
        tls_context,
    )
    from streaming.server.start import (
        authentication,
        broker_config,
        collect_garbage_rarely,
        listener,
        ready_file,
    )

    max_ahead_ms = max_ahead_milliseconds(max_ahead)
    topics = _topics(engine, ingress, responses, data, test_double)
    refuse_unused(
        ("--name", name is not None and topics is None, "without --ingress and --responses"),
        ("--kafka-config", kafka_config is not None and topics is None, "without --ingress and --responses"),
        ("--trigger", trigger != TRIGGER and engine is EngineType.embedded, "without --engine spark"),
        ("--max-ahead", max_ahead != MAX_AHEAD and test_double, "with --test-double"),
    )
    if (quarantine or quarantine_topic) and topics is not None and engine is EngineType.embedded:
        raise typer.BadParameter(
            "the query runs elsewhere: give this option to it", param_hint="--quarantine, --quarantine-topic"
        )
    aside = (
        [coordinates(each) for each in quarantine or ()],
        [topic_name(each) for each in quarantine_topic or ()],
    )
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("one needs the other", param_hint="--tls-cert, --tls-key")
    if token_secret_key is not None and token_public_key is not None:
        raise typer.BadParameter("give one of them", param_hint="--token-secret-key, --token-public-key")
    settings = _pairs(setting, "--set")
    try:
        bounds = limits(_pairs(limit, "--limit"))
    except BadLimit as error:
        raise typer.BadParameter(str(error), param_hint="--limit") from None
    with (
        expected_errors(BadSetting, ListenError, TokenKeyError),
        stop_signals() as stop,
        logging_in_background(),
        ready_file(ready_at) as ready,
    ):
        broker = broker_config(profile.value if profile else "4.x", settings)
        has_tokens = token_secret_key is not None or token_public_key is not None
        check_protection(settings, tokens=has_tokens, tls=tls_cert is not None, embedded=topics is None)
        bounds = structs.replace(bounds, connections=allow_connections(bounds.connections))
        give_back_memory()
        tokens = authentication(token_secret_key, token_public_key)
        advertised = None if advertised_address is None else advertisable(advertised_address)
        tls = None if tls_cert is None or tls_key is None else tls_context(tls_cert, tls_key)
        is_open = not (insecure or tokens)
        clients = listener("--listen", listen, only_loopback=is_open)
        admin_listener = listener("--admin-listen", admin_listen, only_loopback=is_open)
        security = Security(tls, tokens, insecure, settings)

        def run(engine: Engine, clock: HeldClock | None = None) -> None:
            collect_garbage_rarely()

            def started(server: Server) -> None:
                _started(server)
                ready(server)

            asyncio.run(
                serve(
                    engine,
                    clients,
                    stop,
                    started,
                    bounds,
                    admin_listener=admin_listener,
                    clock=clock,
                    security=security,
                    advertised=advertised,
                )
            )

        if topics is None:
            _serve_embedded(run, data, broker, test_double, fsync, aside, RealClock(max_ahead_ms))
        else:
            _serve_query(
                run,
                topics,
                name,
                clients.getsockname()[1],
                broker,
                bool(profile or setting),
                kafka_config,
                None if engine is EngineType.embedded else data,
                trigger,
                stop,
                aside,
                max_ahead_ms,
            )
    if is_read(2):
        say("magnetar: stopped", err=True)


def _topics(
    engine: EngineType, ingress: str | None, responses: str | None, data: Path | None, test_double: bool
) -> tuple[str, str] | None:
    """The ingress and response topics, if a query folds the commands. Raises `typer.BadParameter`."""
    if ingress is None or responses is None:
        if ingress is not None or responses is not None or engine is EngineType.spark:
            raise typer.BadParameter("a Spark query needs both --ingress and --responses")
        return None
    if test_double:
        raise typer.BadParameter("--test-double is only for the embedded engine")
    if engine is EngineType.spark and data is None:
        raise typer.BadParameter("--engine spark needs --data, a folder for the query's checkpoint and store")
    if engine is EngineType.spark and data is not None:
        from streaming.log.files import is_data_folder

        if is_data_folder(data):
            raise typer.BadParameter(
                f"--data: {data} has the log of the embedded engine: choose another folder"
            )
    if engine is EngineType.embedded and data is not None:
        raise typer.BadParameter(
            "--data: a query that runs elsewhere has its own folders; to run it here, add --engine spark"
        )
    return ingress, responses


def _serve_embedded(
    run: Run,
    data: Path | None,
    broker: BrokerConfig,
    test_double: bool,
    fsync: bool,
    aside: Aside,
    machine: RealClock,
) -> None:
    from schemas.coordinates import TopicAside
    from sinks.lock import InUse, NotWritable
    from streaming.fold.records import FoldError, set_aside_by_name
    from streaming.server.clock import HeldClock
    from streaming.server.data_folder import BadData
    from streaming.server.embedded import STANDALONE, EmbeddedEngine
    from streaming.server.engine import EngineStopped

    with expected_errors(BadData, InUse, NotWritable, failed=(EngineStopped, FoldError)):
        clock = HeldClock(machine.now(), machine) if test_double else None
        engine = EmbeddedEngine(
            data,
            clock=clock or machine,
            profile=broker.profile,
            settings=broker.settings if test_double else {"maxEffectsPerCommand": 10_000} | broker.settings,
            test_double=test_double,
            fsync=fsync,
            begins_with=STANDALONE,
            set_aside=set_aside_by_name(aside[0], map(TopicAside, aside[1])),
            say=lambda text: say(f"magnetar: {text}", err=True),
        )
        run(engine, clock)


def _serve_query(
    run: Run,
    topics: tuple[str, str],
    name: str | None,
    port: int,
    broker: BrokerConfig,
    configure: bool,
    kafka_config: Path | None,
    data: Path | None,
    trigger: str,
    stop: Event,
    aside: Aside,
    max_ahead_ms: int | None,
) -> None:
    """Serve before a query, which runs in this process if there is a folder for its `data`."""
    from sinks.base import ForeignFiles
    from sinks.lock import InUse, LeaseLost, NotWritable
    from streaming.fold.records import NoSuchRecord
    from streaming.kafka.client import KafkaUnreachable
    from streaming.kafka.config import KafkaConfigError
    from streaming.kafka.ingress import IngressChanged, TopicInUse
    from streaming.kafka.retention import LogLost
    from streaming.kafka.topics import NoSuchTopic
    from streaming.kafka.url import KafkaUrl, KafkaUrlError
    from streaming.kafka.writer import NotWritten
    from streaming.runtime.clock import RealClock
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError
    from streaming.server.embedded import STANDALONE
    from streaming.server.query_engine import BadName, NameTaken, QueryEngine, TopicsChanged, server_name
    from streaming.spark.failure import QueryFailed
    from streaming.spark.trigger import BadTrigger
    from streaming.state.seed import NotWhole

    with expected_errors(
        BadName,
        BadTrigger,
        InUse,
        JarsUnavailableError,
        JavaNotFoundError,
        KafkaConfigError,
        KafkaUnreachable,
        KafkaUrlError,
        NoSuchRecord,
        NoSuchTopic,
        NotWhole,
        NotWritable,
        failed=(
            ForeignFiles,
            IngressChanged,
            LeaseLost,
            LogLost,
            NameTaken,
            NotWritten,
            QueryFailed,
            TopicInUse,
            TopicsChanged,
        ),
    ):
        config = credentials(kafka_config)
        engine = QueryEngine(
            KafkaUrl.parse(topics[0]),
            KafkaUrl.parse(topics[1]),
            server_name(name, port),
            config=config,
            clock=RealClock(max_ahead_ms),
            broker=broker if configure else None,
            begins_with=STANDALONE if configure else (broker, *STANDALONE),
        )
        with _query(topics, data, trigger, config, stop, aside, max_ahead_ms):
            if not stop.is_set():
                run(engine)


@contextmanager
def _query(
    topics: tuple[str, str],
    data: Path | None,
    trigger: str,
    config: KafkaConfig,
    stop: Event,
    aside: Aside,
    max_ahead_ms: int | None,
) -> Iterator[None]:
    """Run the query beside the context, if it is to run in this process. Its end sets `stop`. Raises its error at the end."""
    if data is None:
        yield
        return

    from streaming.jobs.run import run_query
    from streaming.spark.failure import explained

    folder, running = data.absolute(), Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with explained(
                "Nothing is lost: when restarted with the same --data, it repeats the micro-batch"
            ):
                run_query(
                    topics[0],
                    folder / "checkpoint",
                    str(folder / "store"),
                    responses=topics[1],
                    config=config,
                    trigger=trigger,
                    set_aside=aside[0],
                    topics_aside=aside[1],
                    max_ahead_ms=max_ahead_ms,
                    on_batch=lambda _: running.set(),  # the first one takes long
                    stop=stop,
                )
        except BaseException as error:
            errors.append(error)
        finally:
            stop.set()
            running.set()

    thread = Thread(target=run, name="query")
    thread.start()
    running.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if errors:
            raise errors[0]


def _pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    from streaming.server.start import BadOption, pairs

    try:
        return pairs(texts)
    except BadOption as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _started(server: Server) -> None:
    say(f"magnetar: serving {server.service_url} and {server.admin_url}; Ctrl-C stops it", err=True)
