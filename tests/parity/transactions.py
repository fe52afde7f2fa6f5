"""Transactions that begin, take messages and acks, and end at random."""

import random
import re
from collections.abc import Callable

from streaming.broker.names import COORDINATOR_ASSIGN
from tests.parity.consumers import Consumers
from tests.parity.publisher import Publisher
from tests.parity.recorder import Record, Recorder

_MOST = 3
"""The maximum number of open transactions at a time."""
_SECONDS = 600
"""No transaction of a scenario lives so long."""


class Transactions:
    """Transactions of one coordinator. Each operation of a plan is a method, which returns whether there was anything to do."""

    def __init__(self, recorder: Recorder, publisher: Publisher, consumers: Consumers) -> None:
        self._recorder, self._publisher, self._consumers = recorder, publisher, consumers
        self._open: list[Record] = []
        self._ended: list[Record] = []
        self._connection = recorder.open()
        self.reopen()

    def reopen(self) -> None:
        """Connect to the coordinator, as its client does, too, after a restart."""
        if self._connection not in self._recorder.connections:
            self._connection = self._recorder.open()
        self._ask("PARTITIONED_METADATA", topic=COORDINATOR_ASSIGN)
        self._ask("LOOKUP", topic=f"{COORDINATOR_ASSIGN}-partition-0", authoritative=False)
        self._ask("TC_CLIENT_CONNECT_REQUEST", tc_id=0)

    def begin(self, dice: random.Random) -> bool:
        """A transaction that knows all topics and subscriptions, or not."""
        if len(self._open) == _MOST:
            return False
        said = self._ask("NEW_TXN", txn_ttl_seconds=1000 * _SECONDS, tc_id=0)
        if "txnid_least_bits" not in said.get("fields", {}):
            return True
        txn = {each: said["fields"][each] for each in ("txnid_least_bits", "txnid_most_bits")}
        self._open.append(txn)
        topics = self._recorder.topics
        if dice.random() < 0.9:
            self._ask("ADD_PARTITION_TO_TXN", partitions=[*topics], **txn)
        if dice.random() < 0.9:
            known = [
                {"topic": each, "subscription": name} for each in topics for name in self._consumers.names
            ]
            self._ask("ADD_SUBSCRIPTION_TO_TXN", subscription=known, **txn)
        return True

    def publish_in_one(self, dice: random.Random) -> bool:
        return self._in_one(dice, self._publisher.publish)

    def batch_in_one(self, dice: random.Random) -> bool:
        return self._in_one(dice, self._publisher.batch)

    def ack_in_one(self, dice: random.Random) -> bool:
        return self._in_one(dice, dice.choice([self._consumers.ack, self._consumers.ack_some]))

    def ack_any_in_one(self, dice: random.Random) -> bool:
        return self._in_one(dice, self._consumers.ack_any)

    def ack_part_in_one(self, dice: random.Random) -> bool:
        return self._in_one(dice, self._consumers.ack_part)

    def ack_cumulative_in_one(self, dice: random.Random) -> bool:
        return self._in_one(dice, self._consumers.ack_cumulative)

    def commit(self, dice: random.Random) -> bool:
        return self._end(dice, "COMMIT")

    def abort(self, dice: random.Random) -> bool:
        return self._end(dice, "ABORT")

    def finish(self) -> None:
        """End all, for the next scenario: what is open there holds back marks here. The recording counts transactions from 0."""
        for txn in self._open:
            self._ask("END_TXN", txn_action="ABORT", **txn)
        self._open.clear()
        count_from_0(self._recorder.records)

    def _in_one(self, dice: random.Random, operation: Callable[[random.Random], bool]) -> bool:
        """An operation in a transaction that is open, seldom in one that has ended."""
        known = self._ended if self._ended and dice.random() < 0.03 else self._open
        if not known:
            return False
        self._publisher.txn = self._consumers.txn = dice.choice(known)
        try:
            return operation(dice)
        finally:
            self._publisher.txn = self._consumers.txn = {}

    def _end(self, dice: random.Random, action: str) -> bool:
        again = bool(self._ended) and dice.random() < 0.05
        known = self._ended if again else self._open
        if not known:
            return False
        txn = dice.choice(known)
        self._ask("END_TXN", txn_action=action, **txn)
        if not again:
            self._open.remove(txn)
            self._ended.append(txn)
        return True

    def _ask(self, command: str, **fields: object) -> Record:
        return self._recorder.ask(self._connection, command, **fields)


def count_from_0(records: list[Record], first: int | None = None) -> None:
    """Change the ids of transactions of coordinator 0 in a recording so that number `first` is 0, or else the first one that begins. The coordinator
    counts on from scenario to scenario."""
    if first is None:
        begun = (each["fields"] for each in records if each.get("cmd") == "NEW_TXN_RESPONSE")
        first = next((each["txnid_least_bits"] for each in begun if "txnid_least_bits" in each), 0)
    for record in records:
        for part in (record.get("fields", {}), record.get("metadata", {})):
            if part.get("txnid_most_bits") == 0 and "txnid_least_bits" in part:
                part["txnid_least_bits"] -= first
            for name, value in part.items():
                if isinstance(value, str):
                    part[name] = re.sub(r"\(0,(\d+)\)", lambda found: f"(0,{int(found[1]) - first})", value)
