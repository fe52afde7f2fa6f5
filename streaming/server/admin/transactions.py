"""Calls on transactions over HTTP: who may make them, and one answer from those of several ingress partitions. What they tell is in
`streaming.broker.admin.transactions`."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from schemas.commands import Admin, EndTxn
from schemas.effects import AdminResponse
from streaming.broker.admin.transactions import BELOW, TransactionSource, called, to_abort
from streaming.broker.errors import AdminError
from streaming.broker.names import COORDINATOR_ASSIGN, partition_of
from streaming.server.admin.asks import Ask
from streaming.server.embedded import EmbeddedEngine
from streaming.server.engine import Engine

PATH = f"/admin/v3{BELOW}{{rest:path}}"


def ask_of(method: str, path: str, query: Mapping[str, str]) -> Ask:
    """What a call on a `path` below transactions asks. quirk: most calls ask nothing, so every role learns of all transactions."""
    call = path.partition("/")[0]
    if method == "GET":
        of_all = call in ("coordinatorStats", "slowTransactions") and "coordinatorId" not in query
        return Ask("topic", "LOOKUP") if of_all else Ask("anyone")
    return Ask("superuser")


ASSIGN_NAMES = {"tenant": "pulsar", "namespace": "system", "topic": COORDINATOR_ASSIGN.rpartition("/")[2]}
"""The parts of the name of the topic that `ask_of` asks about."""


async def told(engine: Engine, path: str, service_url: str) -> Any:
    """The answer to GET of a `path` below transactions, with its query. `service_url`: that of the broker which has the coordinators. Raises `AdminError`,
    `EngineStopped`, `NoAnswer`."""
    if isinstance(engine, EmbeddedEngine):
        broker = engine.folded
        _, found = called(broker.config, BELOW + path, TransactionSource(broker.coordinators, broker.topic))
    else:
        rows = await engine.submit(None, Admin(method="GET", path=BELOW + path))
        answers = [each.effect for each in rows if isinstance(each.effect, AdminResponse)]
        found = _of_all(answers)
    if path.partition("?")[0] == "coordinators":
        found = [each | {"brokerServiceUrl": service_url} for each in found]
    return found


def _of_all(answers: Sequence[AdminResponse]) -> Any:
    """What all ingress partitions tell. They have the same coordinators, and each its own topics. Raises `AdminError` if none tells anything."""
    told = [each.fields.response for each in answers if each.fields.status < 400]
    if not told:
        refusal: Any = answers[0].fields
        raise AdminError(refusal.status, refusal.response["reason"])
    return reduce(_joined, told)


def _joined(one: Any, other: Any) -> Any:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one
    return {
        **one,
        **{name: _joined(one[name], value) if name in one else value for name, value in other.items()},
    }


async def abort(engine: Engine, path: str) -> bool:
    """POST of a `path` below transactions. False: there is no such path. Raises as `told` does."""
    txn = to_abort(path)
    if txn is None:
        return False
    await told(engine, f"transactionMetadata/{txn.most}/{txn.least}", "")
    command = EndTxn(
        connection=engine.new_connection(), request_id=0, txnid_most_bits=txn.most, txnid_least_bits=txn.least, txn_action="ABORT"
    )  # fmt: skip
    await engine.submit(partition_of(COORDINATOR_ASSIGN, txn.most), command)
    return True
