"""Magnetar from Python: Apache Pulsar's broker semantics, with Spark or without.

This module has all that is public. What `__all__` does not name is private, also in the packages ``streaming``, ``sinks`` and
``schemas`` that come with it, and may change with any version. docs/reference/python.md is the guide.

A *log* is a file of commands (``.jsonl``, ``.jsonl.gz`` or Parquet), or the Arrow table that `read_log` makes of it. Times are ms since
the epoch, sizes are bytes. ::

    import magnetar

    with open("orders.jsonl", "w") as log:
        log.write('{"topic": "persistent://shop/day/orders", "producer": "web-1", "sequence_id": 0, "payload": "a book"}')

    magnetar.replay("orders.jsonl", "out")
    print(magnetar.read_rows("out", "SEND_RECEIPT")["sequence_id"].to_pylist())
    print(magnetar.explain("out", "shop/day/orders", position=(1, 0))[0].text)

**Fold a log.** `replay` writes the output rows, the entries and the states to a folder. `Timeline` goes to any moment of a log.
`Broker` is the core alone: commands in, effects out, in memory; `decode` makes a command of bytes.

**Fold a DataFrame.** `start` starts a streaming query over commands of yours, with exactly-once outputs. `fold` gives the output rows
of a batch.

**Ask.** `explain`: what happened to a message? `whatif`: what would other policies have done? `diff`: the same of two replays.
`advise`: which policies lose nothing? `check`: does a small scenario break a promise in any order? `minimize`: which few commands of
a log show the same?

**Read.** `read_log`, `read_rows` (outputs), `read_entries` (messages), `read_responses` (Kafka). `states_at` reads the states in a
query's checkpoint; `views` and `spark_views` make tables of states. `spark_session` starts a Spark that suits Magnetar.

**Errors** are `MagnetarError`, or Python's own: `FileNotFoundError` for a path at which nothing is, `TypeError` for an argument
of another type than the function says, and `ValueError` for arguments that contradict each other and for a count below 1. A query of Spark's that fails raises ``pyspark.errors.StreamingQueryException``.

``import magnetar`` loads next to nothing. A name loads what it needs when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming import __version__

if TYPE_CHECKING:
    from schemas.commands import decode_or_refuse as decode
    from schemas.errors import MagnetarError
    from sinks.kafka import read_responses
    from sinks.ledger_store import LedgerStore
    from sinks.lock import InUse
    from sinks.outputs import InTheWay
    from streaming.answers.advise.needs import Advice, advise
    from streaming.answers.check.minimize import KeepError, Minimized, NothingSmaller, minimize
    from streaming.answers.check.scenario import ScenarioError
    from streaming.answers.check.schedules import Checked, check
    from streaming.answers.explain.life import Life, explain
    from streaming.answers.history.folders import NotFound, read_entries, read_rows
    from streaming.answers.history.inspection import spark_views, states_at, views
    from streaming.answers.history.timeline import Timeline
    from streaming.answers.whatif.answer import WhatIf
    from streaming.answers.whatif.clients.made_log import ClientSettings
    from streaming.answers.whatif.compare import whatif
    from streaming.answers.whatif.diff import diff
    from streaming.answers.whatif.projection import LiveState
    from streaming.broker.broker import Broker
    from streaming.jobs.replay import ReplayResult, replay
    from streaming.jobs.start import start
    from streaming.log.files import read_log
    from streaming.log.policy_files import PolicyError
    from streaming.log.table import LogError
    from streaming.spark.dataframes import BadCommands, fold
    from streaming.spark.failure import QueryFailed
    from streaming.spark.query import Written
    from streaming.spark.session import spark_session

__all__ = [
    "Advice",
    "BadCommands",
    "Broker",
    "Checked",
    "ClientSettings",
    "InTheWay",
    "InUse",
    "KeepError",
    "LedgerStore",
    "Life",
    "LiveState",
    "LogError",
    "MagnetarError",
    "Minimized",
    "NotFound",
    "NothingSmaller",
    "PolicyError",
    "QueryFailed",
    "ReplayResult",
    "ScenarioError",
    "Timeline",
    "WhatIf",
    "Written",
    "__version__",
    "advise",
    "check",
    "decode",
    "diff",
    "explain",
    "fold",
    "minimize",
    "read_entries",
    "read_log",
    "read_responses",
    "read_rows",
    "replay",
    "spark_session",
    "spark_views",
    "start",
    "states_at",
    "views",
    "whatif",
]

_HOMES = {
    "schemas.commands": "decode_or_refuse",
    "schemas.errors": "MagnetarError",
    "sinks.kafka": "read_responses",
    "sinks.ledger_store": "LedgerStore",
    "sinks.lock": "InUse",
    "sinks.outputs": "InTheWay",
    "streaming.answers.advise.needs": "Advice advise",
    "streaming.answers.whatif.diff": "diff",
    "streaming.answers.whatif.projection": "LiveState",
    "streaming.answers.history.folders": "NotFound read_entries read_rows",
    "streaming.answers.history.inspection": "spark_views states_at views",
    "streaming.answers.explain.life": "Life explain",
    "streaming.answers.check.minimize": "KeepError Minimized NothingSmaller minimize",
    "streaming.answers.check.scenario": "ScenarioError",
    "streaming.answers.check.schedules": "Checked check",
    "streaming.answers.history.timeline": "Timeline",
    "streaming.answers.whatif.answer": "WhatIf",
    "streaming.answers.whatif.clients.made_log": "ClientSettings",
    "streaming.answers.whatif.compare": "whatif",
    "streaming.broker.broker": "Broker",
    "streaming.log.files": "read_log",
    "streaming.log.policy_files": "PolicyError",
    "streaming.log.table": "LogError",
    "streaming.jobs.replay": "ReplayResult replay",
    "streaming.spark.dataframes": "BadCommands fold",
    "streaming.spark.failure": "QueryFailed",
    "streaming.spark.query": "Written",
    "streaming.spark.session": "spark_session",
    "streaming.jobs.start": "start",
}
"""The names of each module, as above."""
_RENAMED = {"decode_or_refuse": "decode"}
_HOME = {_RENAMED.get(name, name): (home, name) for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, own = _HOME[name]
    found = globals()[name] = getattr(import_module(home), own)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
