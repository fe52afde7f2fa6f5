"""`magnetar ui`: the live page about a finished replay, or about the folders of a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.console import say
from streaming.cli.errors import expected_errors
from streaming.runtime.signals import stop_signals

if TYPE_CHECKING:
    from streaming.fold.records import StateRow


def ui_command(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="The --out of a replay, or the --store of a query.")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="The --checkpoint of the query, running or not (a folder, or an s3a:// URL), if DIR is not a replay's folder."
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where to serve the page. Port 0 picks a free port."),
    ] = "127.0.0.1:8090",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen on an address that other machines reach, although the page requires no password.",
        ),
    ] = False,
) -> None:
    """Serve a web page about a finished replay or the folders of a query, until Ctrl-C or SIGTERM.

    `magnetar run --ui` serves the page of a running query.
    """
    from sinks.storage import BadUrl
    from streaming.answers.history.folders import Folders, NotFound
    from streaming.answers.history.inspection import check_batches
    from streaming.broker.errors import StateVersionError
    from streaming.metrics.endpoint import Endpoint, EndpointError
    from streaming.runtime.jars import JarsUnavailableError
    from streaming.runtime.java import JavaNotFoundError, spark_java_home
    from streaming.spark.checkpoint import BadCheckpoint
    from streaming.state.saved import read_states
    from streaming.ui.application import application
    from streaming.ui.view import FolderView

    with (
        expected_errors(
            NotFound,
            BadCheckpoint,
            BadUrl,
            StateVersionError,
            JarsUnavailableError,
            JavaNotFoundError,
            EndpointError,
        ),
        stop_signals() as stop,
    ):
        found = Folders.of(folder, checkpoint)
        kept = None if found.state is None else read_states(found.state)
        if kept is None and found.checkpoint is not None:
            check_batches(found.checkpoint)
            spark_java_home()
        elif kept is None and found.state is not None:
            raise NotFound(
                f"{folder} has neither the states of a finished replay nor the checkpoint of a query"
            )

        def read() -> list[StateRow]:
            return kept if kept is not None else found.states()

        page = Endpoint(listen, option="--listen", only_loopback=not insecure)
        view = FolderView(folder, found, read if found.has_states else None, finished=kept is not None)
        page.start(application(view, only_loopback=not insecure))
        say(f"magnetar: the page is at {page.url}/; Ctrl-C stops it", err=True)
        stop.wait()
        page.close()
    say("magnetar: stopped", err=True)
