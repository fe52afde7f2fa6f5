"""Transactions of several roles: what a broker says of them, a real Pulsar or `magnetar serve`.

``python -m tests.authorization.transactions`` records what a real one says, with authorization and with tokens alone, in two minutes.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streaming.broker.names import COORDINATOR_ASSIGN
from tests.authorization.questions import (
    SETTINGS,
    SUPERUSER,
    TENANT_ADMIN,
    Admin,
    Connection,
    grouped,
    shown,
    token,
)
from tests.authorization.record import lines
from tests.parity.pulsar import LocalPulsar

RECORDED = Path(__file__).with_name("transactions-4.0.7.json")

BOTH = SETTINGS | {"transactionCoordinatorEnabled": "true"}
ALONE = BOTH | {"authorizationEnabled": "false"}
"""Tokens without authorization."""

OWNER = "producer"
ASKED = (SUPERUSER, TENANT_ADMIN, OWNER, "consumer", "stranger")
"""The roles that ask about transactions. Those of `OWNER` are asked about."""

TENANT = "owned"
TOPIC = f"persistent://{TENANT}/n/t"


class Asking:
    """The connections of all roles, each with an open coordinator."""

    def __init__(self, admin: Admin, address: str) -> None:
        self.admin = admin
        self.clients = {role: Connection(address, role) for role in ASKED}
        self._requests = 0

    def close(self) -> None:
        """Close them."""
        for client in self.clients.values():
            client.close()

    def frame(self, role: str, cmd: str, **fields: Any) -> tuple[str, dict[str, Any]]:
        """The answer to a request of a role."""
        self._requests += 1
        return self.clients[role].ask(cmd, {"request_id": self._requests, **fields})

    def begin(self, role: str = OWNER) -> dict[str, int]:
        """The ids of a new transaction of a role."""
        cmd, answer = self.frame(role, "NEW_TXN", tc_id=0, txn_ttl_seconds=600_000)
        assert "error" not in answer, (cmd, answer)
        return {name: answer[name] for name in ("txnid_least_bits", "txnid_most_bits")}

    def each(self, cmd: str, owner: str = OWNER, **fields: Any) -> list[list[Any]]:
        """What each role is told about a request in a transaction of `owner`, a new one for each."""
        found = {}
        for role in ASKED:
            txn = self.begin(owner)
            found[role] = _of(self.frame(role, cmd, **txn, **fields), txn)
        return grouped(found)


def _of(answer: tuple[str, dict[str, Any]], txn: dict[str, int]) -> Any:
    text = f"({txn['txnid_most_bits']},{txn['txnid_least_bits']})"
    return json.loads(json.dumps(shown(answer, TENANT)).replace(text, "TXN"))


def _subscription(topic: str = TOPIC, subscription: str = "s") -> dict[str, Any]:
    return {"subscription": [{"topic": topic, "subscription": subscription}]}


def questions(admin: Admin, address: str, *, authorized: bool) -> Iterator[tuple[str, Any]]:
    """All answers of a broker. `authorized`: it has authorization."""
    admin.prepare(TENANT)
    asking = Asking(admin, address)
    for cmd, topic in (
        ("PARTITIONED_METADATA", COORDINATOR_ASSIGN),
        ("LOOKUP", f"{COORDINATOR_ASSIGN}-partition-0"),
    ):
        found = {role: shown(asking.frame(role, cmd, topic=topic), TENANT) for role in ASKED}
        yield f"{cmd} of the coordinators' topic", grouped(found)
    connected = {
        role: shown(asking.frame(role, "TC_CLIENT_CONNECT_REQUEST", tc_id=0), TENANT) for role in ASKED
    }
    yield "TC_CLIENT_CONNECT_REQUEST", grouped(connected)
    yield (
        "NEW_TXN",
        grouped(
            {role: shown(asking.frame(role, "NEW_TXN", tc_id=0, txn_ttl_seconds=1), TENANT) for role in ASKED}
        ),
    )
    for where, topic in {"": TOPIC, " in a missing tenant": "persistent://missing/n/t"}.items():
        yield f"ADD_PARTITION_TO_TXN{where}", asking.each("ADD_PARTITION_TO_TXN", partitions=[topic])
        yield (
            f"ADD_SUBSCRIPTION_TO_TXN{where}",
            asking.each("ADD_SUBSCRIPTION_TO_TXN", **_subscription(topic)),
        )
    for action in ("COMMIT", "ABORT"):
        yield f"END_TXN, {action}", asking.each("END_TXN", txn_action=action)
    yield "END_TXN of a stranger's", asking.each("END_TXN", "stranger", txn_action="COMMIT")
    yield "END_TXN of a superuser's", asking.each("END_TXN", SUPERUSER, txn_action="COMMIT")
    for role in ASKED:
        txn = asking.begin(role)
        added = asking.frame(role, "ADD_PARTITION_TO_TXN", partitions=[TOPIC], **txn)
        bound = asking.frame(role, "ADD_SUBSCRIPTION_TO_TXN", **_subscription(), **txn)
        ended = asking.frame(role, "END_TXN", txn_action="COMMIT", **txn)
        yield f"a transaction of {role}", [_of(each, txn) for each in (added, bound, ended)]
    missing = {"txnid_least_bits": 99_999, "txnid_most_bits": 0}
    over = asking.begin()
    asking.frame(OWNER, "END_TXN", txn_action="COMMIT", **over)
    for what, txn in (
        ("never was", missing),
        ("has ended", over),
        ("is of no coordinator", missing | {"txnid_most_bits": 9}),
    ):
        found = {role: _of(asking.frame(role, "END_TXN", txn_action="ABORT", **txn), txn) for role in ASKED}
        yield f"END_TXN of one that {what}", grouped(found)
    yield from _messages(asking)
    yield from _calls(asking)
    if authorized:  # whoever may gets no answer from Pulsar
        call = "/admin/v3/transactions/slowTransactions/1000"
        yield "GET slowTransactions/1000", _call(asking, "stranger", "GET", call)
    yield from _commands_of_coordinators(asking, address)
    admin.must("POST", "/namespaces/pulsar/system/permissions/stranger", ["produce"])
    assign = COORDINATOR_ASSIGN + "-partition-0"
    found = {role: shown(asking.frame(role, "LOOKUP", topic=assign), TENANT) for role in ASKED}
    yield "LOOKUP of the coordinators' topic with a grant for a stranger", grouped(found)
    asking.close()


def _messages(asking: Asking) -> Iterator[tuple[str, Any]]:
    """Acks in a transaction of another role."""
    txn = asking.begin()
    asking.frame("consumer", "SUBSCRIBE", topic=TOPIC, subscription="s", subType="Shared", consumer_id=1)
    ack = {"consumer_id": 1, "ack_type": "Individual", "message_id": [{"ledgerId": 1, "entryId": 0}], **txn}
    yield "ACK in another's", asking.frame("consumer", "ACK", **ack)[0]


def _calls(asking: Asking) -> Iterator[tuple[str, Any]]:
    root, name = "/admin/v3/transactions", f"{TENANT}/n/t"
    for call in ("coordinators", "coordinatorStats", "coordinatorStats?coordinatorId=0", f"transactionBufferStats/{name}",
                 f"pendingAckStats/{name}/s", "coordinatorInternalStats/0", f"transactionBufferInternalStats/{name}",
                 f"pendingAckInternalStats/{name}/s", "transactionBufferStats/missing/n/t"):  # fmt: skip
        yield f"GET {call}", grouped({role: _call(asking, role, "GET", f"{root}/{call}") for role in ASKED})
    for method, call in (("GET", "transactionMetadata"), ("GET", f"transactionInBufferStats/{name}"),
                         ("GET", f"transactionInPendingAckStats/{name}/s"), ("POST", "abortTransaction")):  # fmt: skip
        found = {}
        for role in ASKED:
            least = asking.begin()["txnid_least_bits"]
            found[role] = _call(asking, role, method, f"{root}/{call}/0/{least}")
        yield f"{method} {call} of one of {OWNER}", grouped(found)
    yield (
        "POST transactionCoordinator/replicas",
        grouped(
            {
                role: _call(asking, role, "POST", f"{root}/transactionCoordinator/replicas", 1)
                for role in reversed(ASKED)
            }
        ),
    )


def _call(asking: Asking, role: str, method: str, path: str, body: Any = None) -> Any:
    status, reason = asking.admin.ask(role, method, path, body)
    return [status, str(reason)[:200]] if status in (401, 403) else status


def _commands_of_coordinators(asking: Asking, address: str) -> Iterator[tuple[str, Any]]:
    """What coordinators ask brokers."""
    for cmd, where in (
        ("END_TXN_ON_PARTITION", {"topic": TOPIC}),
        ("END_TXN_ON_SUBSCRIPTION", _subscription()),
    ):
        found = {}
        for role in ASKED:
            txn, client = asking.begin(), Connection(address, role)
            more = {"subscription": where["subscription"][0]} if "subscription" in where else where
            found[role] = _of(client.ask(cmd, {"request_id": 1, "txn_action": "ABORT", **more, **txn}), txn)
            client.close()
        yield cmd, grouped(found)


def main() -> None:
    """Record it."""
    own = {
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token(SUPERUSER)}",
    }
    found = {}
    for name, settings in (("authorization", BOTH), ("tokens alone", ALONE)):
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalPulsar(Path(folder) / "pulsar", settings | own, token=token(SUPERUSER)) as broker,
        ):
            admin = Admin(f"http://127.0.0.1:{broker.ports.admin}")
            asked = questions(admin, f"127.0.0.1:{broker.ports.broker}", authorized=settings is BOTH)
            found[name] = dict(asked)
    RECORDED.write_text(lines(found))


if __name__ == "__main__":
    main()
