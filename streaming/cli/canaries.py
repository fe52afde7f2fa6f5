"""`magnetar canaries`: what the canaries of a query have found."""

from __future__ import annotations

from typing import Annotated

import typer

from streaming.cli.errors import expected_errors
from streaming.cli.options import AnswerFolder
from streaming.cli.whatif import print_answer, write_answer


def canaries_command(
    store: Annotated[str, typer.Argument(help="The --store of a query with canaries; it may run.")],
    out: AnswerFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """What would other policies have done to a running query's traffic? Print what its canaries (run --canary) have found."""
    from sinks.storage import BadUrl, Damaged
    from streaming.answers.history.folders import NotFound
    from streaming.canaries.files import CanaryFiles

    with expected_errors(BadUrl, NotFound, failed=(Damaged,)):
        found = CanaryFiles(store).answer(None if out is not None or as_json else 0)
        if found is None:
            raise NotFound(
                f"{store}: no query with canaries has this store; start it with --canary NAME=FILE"
            )
        write_answer(found, out)
    print_answer(found, out, as_json)
