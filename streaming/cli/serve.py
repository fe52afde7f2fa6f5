"""`magnetar serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.errors import expected_errors
from streaming.signals import stop_signals

if TYPE_CHECKING:
    from streaming.server.authentication import TokenAuthentication
    from streaming.server.server import Server


def serve_command(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where clients of the binary protocol connect. Port 0: any free one."
        ),
    ] = "127.0.0.1:6650",
    admin_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the admin REST API and the HTTP lookup are. Port 0: any free one.",
        ),
    ] = "127.0.0.1:8080",
    data: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the log of all commands and for the messages. With the same folder, the broker goes on where "
            "it stopped, however it ended. Without one, everything is in memory and ends with the process."
        ),
    ] = None,
    fsync: Annotated[
        bool,
        typer.Option(
            help="Answer a client once the disk has its command (Pulsar's journalSyncData). Without, answers are faster, and "
            "a crash of the machine may lose the last of them; a crash of the process does not."
        ),
    ] = True,
    profile: Annotated[
        str, typer.Option(help="The Pulsar version whose defaults apply: 2.x or 4.x.")
    ] = "4.x",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A broker setting, by Pulsar's name; see docs/settings.md. Repeatable.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help="What clients may use of the server; see docs/security.md. Repeatable.",
        ),
    ] = None,
    test_double: Annotated[
        bool,
        typer.Option(
            "--test-double",
            help="Be a broker for tests: its clock stands still until a call below /magnetar/v1 moves it, and other calls make "
            "faults and go back. --data gets the log alone.",
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="A PEM file with the server's certificate and those that signed it (Pulsar's tlsCertificateFilePath). With it, "
            "both ports speak TLS alone: pulsar+ssl:// and https://."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            help="A PEM file with the key of the certificate, not encrypted (Pulsar's tlsKeyFilePath)."
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
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen on an address that other machines reach, although nobody who connects needs a token.",
        ),
    ] = False,
) -> None:
    """Serve Pulsar's clients until Ctrl-C or SIGTERM, as a standalone Pulsar does.

    A client of any language connects to pulsar://localhost:6650, and pulsar-admin to http://localhost:8080. The broker runs in
    this process.
    """
    import asyncio

    from sinks.lock import InUse, NotWritable
    from sinks.storage import Damaged, NotStored
    from streaming.broker.config import BadSetting, configuration
    from streaming.fold import FoldError
    from streaming.server.authentication import TokenKeyError
    from streaming.server.binary import BadLimit, limits
    from streaming.server.clock import HeldClock, RealClock
    from streaming.server.data_folder import BadData
    from streaming.server.embedded import STANDALONE, EmbeddedEngine
    from streaming.server.engine import EngineStopped
    from streaming.server.server import (
        Address,
        ListenError,
        Security,
        allow_connections,
        bound,
        serve,
        tls_context,
    )

    if profile not in ("2.x", "4.x"):
        raise typer.BadParameter(f"{profile!r}: expected 2.x or 4.x", param_hint="--profile")
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("one needs the other", param_hint="--tls-cert, --tls-key")
    if token_secret_key is not None and token_public_key is not None:
        raise typer.BadParameter("give one of them", param_hint="--token-secret-key, --token-public-key")
    settings = {"namespacesMustExist": "true"} | dict(_setting(each, "--set") for each in setting or ())
    try:
        bounds = limits(dict(_setting(each, "--limit") for each in limit or ()))
    except BadLimit as error:
        raise typer.BadParameter(str(error), param_hint="--limit") from None
    with (
        expected_errors(
            BadData,
            BadSetting,
            InUse,
            ListenError,
            NotWritable,
            TokenKeyError,
            failed=(Damaged, EngineStopped, FoldError, NotStored),
        ),
        stop_signals() as stop,
    ):
        bounds = bounds.for_messages_of(configuration(profile, settings).maxMessageSize)
        allow_connections(bounds.connections)
        authentication = _authentication(token_secret_key, token_public_key)
        tls = None if tls_cert is None or tls_key is None else tls_context(tls_cert, tls_key)
        listeners = []
        for option, text in (("--listen", listen), ("--admin-listen", admin_listen)):
            address = Address.parse(text)
            if not (address.is_loopback or insecure or authentication):
                raise ListenError(
                    f"{option} {text}: other machines reach this address, and clients need no token: listen on 127.0.0.1, "
                    "ask for tokens with --token-secret-key or --token-public-key, or add --insecure if your network "
                    "protects it"
                )
            listeners.append(bound(address, option))
        listener, admin_listener = listeners
        clock = HeldClock(RealClock().now()) if test_double else None
        engine = EmbeddedEngine(
            data,
            clock=clock,
            profile=profile,
            settings=settings,
            checkpoints=not test_double,
            fsync=fsync,
            begins_with=STANDALONE,
        )
        security = Security(tls, authentication)
        asyncio.run(
            serve(
                engine,
                listener,
                stop,
                _started,
                bounds,
                admin_listener=admin_listener,
                clock=clock,
                security=security,
            )
        )
    typer.echo("magnetar: stopped", err=True)


def _authentication(secret_key: str | None, public_key: str | None) -> TokenAuthentication | None:
    from streaming.server.authentication import TokenAuthentication, TokenKeyError

    try:
        if secret_key is not None:
            return TokenAuthentication.with_secret(secret_key)
        if public_key is not None:
            return TokenAuthentication.with_public_key(public_key)
    except TokenKeyError as error:
        option = "--token-public-key" if secret_key is None else "--token-secret-key"
        raise TokenKeyError(f"{option}: {error}") from None
    return None


def _setting(text: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (name and found):
        raise typer.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint=option)
    return name, value


def _started(server: Server) -> None:
    typer.echo(f"magnetar: serving {server.service_url} and {server.admin_url}; Ctrl-C stops it", err=True)
