"""`magnetar-double`: `magnetar serve --test-double` for those who have nothing else of Magnetar.

It reads its options with Python's own argparse and imports nothing but what serves: no Arrow, no Spark, no typer
(`tests/packaging/test_double.py`). The pytest plugin starts it, too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NoReturn, get_args

from msgspec import structs

from schemas.commands import BrokerConfig, Profile
from schemas.printable import one_line
from sinks.lock import InUse, NotWritable
from sinks.outputs import InTheWay, check_new_file
from streaming import __version__
from streaming.broker.config import BadSetting
from streaming.fold.records import FoldError
from streaming.runtime.clock import RealClock
from streaming.runtime.logs import last_resort
from streaming.runtime.signals import is_read, stop_signals
from streaming.server.authentication import TokenKeyError
from streaming.server.binary import BadLimit, Limits, limits
from streaming.server.clock import HeldClock
from streaming.server.data_folder import BadData
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from streaming.server.engine import EngineStopped
from streaming.server.logs import logging_in_background
from streaming.server.protection import check_protection
from streaming.server.server import (
    ListenError,
    Security,
    Server,
    advertisable,
    allow_connections,
    give_back_memory,
    serve,
    tls_context,
)
from streaming.server.start import (
    STDOUT,
    BadOption,
    authentication,
    broker_config,
    collect_garbage_rarely,
    listener,
    pairs,
    ready_file,
)

_NAME = "magnetar-double"

_WRONG = (
    BadData, BadLimit, BadOption, BadSetting, InTheWay, InUse, ListenError, NotWritable, TokenKeyError,
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A wrong option is one line."""
        _end(f"{message} (see {_NAME} --help)", 2)


def _path(text: str) -> Path:
    if not text:  # which `Path` takes for the current folder
        raise argparse.ArgumentTypeError("the path is empty: is a variable not set?")
    return Path(text)


def parser() -> argparse.ArgumentParser:
    """The options: those of `magnetar serve` that a test double can have."""
    made = _Parser(
        _NAME,
        description="Serve Pulsar's clients as a broker for tests, until Ctrl-C or SIGTERM: its clock stands still until a call under "
        "/magnetar/v1 moves it, and other calls inject faults and return to snapshots.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--listen", metavar="HOST:PORT", default="127.0.0.1:6650",
        help="Where clients of the binary protocol connect. Port 0 picks a free port. The default is %(default)s.")  # fmt: skip
    add("--admin-listen", metavar="HOST:PORT", default="127.0.0.1:8080",
        help="Where the admin REST API, the HTTP lookup, the calls of tests and the metrics are. The default is %(default)s.")  # fmt: skip
    add("--advertised-address", metavar="HOST",
        help="The host that lookups tell clients to connect to, if it differs from --listen.")  # fmt: skip
    add("--ready-file", metavar="FILE", type=_path,
        help="A new file that is there as long as clients can connect. It has a line of JSON with the service_url and the admin_url; "
        "-: that line goes to the standard output.")  # fmt: skip
    add(
        "--end-with-stdin",
        action="store_true",
        help="End when the standard input does: it ends with the program that started this one, however that ends.",
    )
    add("--data", metavar="DIR", type=_path,
        help="A folder for the log of all commands: an empty one, or that of an earlier test double.")  # fmt: skip
    add("--profile", choices=get_args(Profile), default="4.x",
        help="The Pulsar version whose rules and defaults apply. The default is %(default)s.")  # fmt: skip
    add(
        "--set", metavar="NAME=VALUE", action="append", help="A broker setting, by Pulsar's name. Repeatable."
    )
    add("--limit", metavar="NAME=VALUE", action="append",
        help="A limit on the resources that clients can use. Repeatable.")  # fmt: skip
    add("--tls-cert", metavar="FILE", type=_path,
        help="A PEM file with the server's certificate and its chain. With it, both ports speak only TLS.")  # fmt: skip
    add("--tls-key", metavar="FILE", type=_path,
        help="A PEM file with the certificate's private key, unencrypted.")  # fmt: skip
    keys = made.add_mutually_exclusive_group()
    keys.add_argument("--token-secret-key", metavar="KEY",
                      help="Clients need a token (JWT) that is signed with this secret key: file:///PATH, a path, or data:;base64,KEY.")  # fmt: skip
    keys.add_argument("--token-public-key", metavar="KEY",
                      help="Clients need a token (JWT) that is signed with the private key to this public key, RSA or EC, in DER or PEM.")  # fmt: skip
    add("--insecure", action="store_true",
        help="Listen on an address that other machines reach, although clients need no token.")  # fmt: skip
    add("--version", action="version", version=f"{_NAME} {__version__}")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command with these `arguments`; None: those of the process."""
    last_resort()
    given = parser().parse_args(arguments)
    try:
        if (given.tls_cert is None) != (given.tls_key is None):
            raise BadOption("--tls-cert, --tls-key: one needs the other")
        if given.ready_file not in (None, STDOUT):
            check_new_file(given.ready_file)
        broker = broker_config(given.profile, pairs(given.set))
        _serve(given, broker, limits(pairs(given.limit)))
    except _WRONG as error:
        _end(str(error), 2)
    except (EngineStopped, FoldError, OSError) as error:
        _end(_text(error), 1)


def _serve(given: argparse.Namespace, broker: BrokerConfig, bounds: Limits) -> None:
    tokens = authentication(given.token_secret_key, given.token_public_key)
    check_protection(pairs(given.set), tokens=tokens is not None, tls=given.tls_cert is not None)
    bounds = structs.replace(bounds, connections=allow_connections(bounds.connections))
    give_back_memory()
    advertised = None if given.advertised_address is None else advertisable(given.advertised_address)
    tls = None if given.tls_cert is None else tls_context(given.tls_cert, given.tls_key)
    is_open = not (given.insecure or tokens)
    clients = listener("--listen", given.listen, only_loopback=is_open)
    admin = listener("--admin-listen", given.admin_listen, only_loopback=is_open)
    machine = RealClock()
    clock = HeldClock(machine.now(), machine)
    with stop_signals() as stop, logging_in_background(), ready_file(given.ready_file) as ready:
        if given.end_with_stdin:
            Thread(target=_end_with_stdin, daemon=True).start()
        engine = EmbeddedEngine(
            given.data,
            clock=clock,
            profile=broker.profile,
            settings=broker.settings,
            test_double=True,
            begins_with=STANDALONE,
            say=lambda text: _say(f"magnetar: {text}"),
        )
        collect_garbage_rarely()

        def started(server: Server) -> None:
            _say(f"magnetar: serving {server.service_url} and {server.admin_url}; Ctrl-C stops it")
            ready(server)

        security = Security(tls, tokens, given.insecure, pairs(given.set))
        asyncio.run(
            serve(
                engine, clients, stop, started, bounds, admin_listener=admin, clock=clock, security=security, advertised=advertised
            )
        )  # fmt: skip
    if is_read(2):
        _say("magnetar: stopped")


def _end_with_stdin() -> None:
    with suppress(OSError):
        while os.read(0, 1 << 16):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _say(text: str) -> None:
    print(one_line(text), file=sys.stderr, flush=True)


def _end(text: str, code: int) -> NoReturn:
    _say(f"{_NAME}: {text}")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
