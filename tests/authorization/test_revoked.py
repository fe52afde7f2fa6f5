"""A permission that is taken back ends all that it allowed, whatever its client did before: nothing of the client is left in the broker."""

import asyncio
import random
from typing import Any

import pytest

from schemas.commands import Admin
from streaming.broker.broker import Broker
from streaming.protocol.codec import FrameReader, decode, encode
from streaming.server.authentication import TokenAuthentication
from streaming.server.authorization import Authorization
from streaming.server.binary import BinaryServer
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine
from streaming.server.faults import FaultSpec
from tests.authorization.questions import SETTINGS, token
from tests.server.test_limits import NOW, Wire, rest

pytestmark = pytest.mark.feature("I8")

EVE = "eve"
VICTIM, OWN = "victim/n", "own/n"
TOPICS = [f"persistent://{VICTIM}/a", f"persistent://{VICTIM}/b", f"non-persistent://{VICTIM}/c", f"persistent://{OWN}/a"]  # fmt: skip
GRANT = f"/namespaces/{VICTIM}/permissions/{EVE}"


class Attack:
    """A server, and a client that may use two namespaces, until one of them is closed to it."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        authorization = Authorization.of(lambda: engine.folded, SETTINGS)
        assert authorization is not None
        self._authorization, self._engine = authorization, engine
        tokens = TokenAuthentication.with_secret(SETTINGS["tokenSecretKey"])
        self.server = BinaryServer(engine, "pulsar://localhost:6650", None, tokens, authorization)
        self.wire = self.connected(EVE)

    def connected(self, role: str) -> Wire:
        wire = Wire(self.server)
        fields = {"client_version": "test", "protocol_version": 21, "auth_method_name": "token", "auth_data": token(role).encode()}  # fmt: skip
        wire.protocol.data_received(encode("CONNECT", fields))
        return wire

    async def prepare(self) -> None:
        for namespace in (VICTIM, OWN):
            tenant = namespace.partition("/")[0]
            await self.call("PUT", f"/tenants/{tenant}", {"allowedClusters": ["standalone"]})
            await self.call("PUT", f"/namespaces/{namespace}")
            await self.call("POST", f"/namespaces/{namespace}/permissions/{EVE}", ["produce", "consume"])

    async def call(self, method: Any, path: str, body: Any = None) -> None:
        """What the admin API does."""
        await self._engine.submit(None, Admin(method=method, path=path, body=body))
        if "permissions" in path:
            self._authorization.on_change("/".join(path.split("/")[2:4]))

    def send(self, cmd: str, **fields: Any) -> None:
        self.wire.protocol.data_received(encode(cmd, fields))

    def left(self, namespace: str) -> list[str]:
        """What the client has in a namespace, as the broker tells everybody."""
        found = []
        for topic in TOPICS:
            if f"//{namespace}/" in topic and topic in (broker := self._engine.broker).topic_names():
                found += _clients(broker, topic)
        return found


def _clients(broker: Broker, topic: str) -> list[str]:
    stats: dict[str, Any] = broker.topic_stats(topic)["stats"]
    consumers = [each for found in stats["subscriptions"].values() for each in found["consumers"]]
    waiting = (
        []
        if topic.startswith("non-")
        else [each for each in broker.topic(topic).access.waiting if not each.gone]
    )
    return [topic] * (len(stats["publishers"]) + len(consumers) + len(waiting))


def subscribe(topic: str, consumer: int, request: int, name: str = "s", kind: str = "Shared") -> dict[str, Any]:  # fmt: skip
    return {
        "topic": topic,
        "subscription": name,
        "subType": kind,
        "consumer_id": consumer,
        "request_id": request,
    }


def test_an_id_that_is_used_again_elsewhere() -> None:
    """The first consumer is still open, with its permits. There is no second one."""

    async def attack(attack: Attack) -> None:
        attack.send("SUBSCRIBE", **subscribe(TOPICS[0], 5, 1))
        attack.send("FLOW", consumer_id=5, messagePermits=1000)
        attack.send("SUBSCRIBE", **subscribe(TOPICS[3], 5, 2))
        await rest(attack.server)
        assert len(attack.left(VICTIM)) == 1
        await attack.call("DELETE", GRANT)
        await rest(attack.server)
        assert attack.left(VICTIM) == []
        assert attack.left(OWN) == []
        closed = [each.cmd for each in map(decode, FrameReader().feed(attack.wire.read())) if each.cmd == "CLOSE_CONSUMER"]  # fmt: skip
        assert closed == ["CLOSE_CONSUMER"]

    attacked(attack)


def test_another_subscription_under_the_same_id() -> None:
    """The answer is SUCCESS, and the consumer stays on its first subscription: that is the one of which roles are asked."""

    async def attack(attack: Attack) -> None:
        attack.send("SUBSCRIBE", **subscribe(TOPICS[0], 5, 1, "of-some"))
        attack.send("SUBSCRIBE", **subscribe(TOPICS[0], 5, 2, "of-all"))
        await rest(attack.server)
        await attack.call("POST", f"/namespaces/{VICTIM}/permissions/subscription/of-some", ["friend"])
        await rest(attack.server)
        assert attack.left(VICTIM) == []

    attacked(attack)


def test_an_answer_to_another_request_of_the_same_number() -> None:
    """A refused request, or one that succeeds at once, is not that of the consumer."""

    async def attack(attack: Attack) -> None:
        attack.send("SUBSCRIBE", **subscribe(TOPICS[1], 9, 9, "pulsar.dedup"))  # refused
        attack.send("SUBSCRIBE", **subscribe(TOPICS[0], 5, 9))
        await rest(attack.server)
        attack.send("SUBSCRIBE", **subscribe(TOPICS[1], 6, 10, "two"))
        attack.send("SUBSCRIBE", **subscribe(TOPICS[1], 7, 11, "two"))
        await rest(attack.server)
        attack.send("UNSUBSCRIBE", consumer_id=6, request_id=12)  # refused: there are two
        attack.send("WATCH_TOPIC_LIST_CLOSE", watcher_id=1, request_id=12)
        await rest(attack.server)
        assert len(attack.left(VICTIM)) == 3
        await attack.call("DELETE", GRANT)
        await rest(attack.server)
        assert attack.left(VICTIM) == []

    attacked(attack)


def test_what_was_asked_for_before_and_comes_after() -> None:
    """A request that was permitted, and that the broker has not carried out when the permission goes."""

    async def attack(attack: Attack) -> None:
        attack.server.faults.add(FaultSpec(command="SUBSCRIBE", action="delay", delay=1000))
        attack.send("SUBSCRIBE", **subscribe(TOPICS[0], 5, 1))
        attack.send("PRODUCER", topic=TOPICS[0], producer_id=5, request_id=2)
        await rest(attack.server)
        assert attack.left(VICTIM) == []
        await attack.call("DELETE", GRANT)
        clock = attack.server.engine.clock
        assert isinstance(clock, HeldClock)
        clock.move_to(NOW + 2000)
        attack.server.release()
        await rest(attack.server)
        assert attack.left(VICTIM) == []
        assert not attack.server.connections[attack.wire.protocol.name]._asked_for

    attacked(attack)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_was_sent_before(seed: int) -> None:
    """Few ids and few numbers of requests, so that they meet."""
    dice = random.Random(seed)

    async def attack(attack: Attack) -> None:
        for _ in range(dice.randrange(4, 30)):
            topic, number, request = dice.choice(TOPICS), dice.randrange(3), dice.randrange(4)
            match dice.randrange(8):
                case 0 | 1 | 2:
                    name, kind = (
                        dice.choice(["s", "r", "pulsar.dedup", ""]),
                        dice.choice(["Shared", "Exclusive"]),
                    )
                    attack.send("SUBSCRIBE", **subscribe(topic, number, request, name, kind))
                case 3 | 4:
                    mode = dice.choice(["Shared", "WaitForExclusive", "ExclusiveWithFencing"])
                    attack.send("PRODUCER", topic=topic, producer_id=number, request_id=request, producer_access_mode=mode)  # fmt: skip
                case 5:
                    attack.send(dice.choice(["UNSUBSCRIBE", "CLOSE_CONSUMER"]), consumer_id=number, request_id=request)  # fmt: skip
                case 6:
                    attack.send("CLOSE_PRODUCER", producer_id=number, request_id=request)
                case 7:
                    attack.send("WATCH_TOPIC_LIST_CLOSE", watcher_id=1, request_id=request)
            if dice.random() < 0.3:
                await rest(attack.server)
            if attack.wire.is_closing():
                attack.wire = attack.connected(EVE)
        await attack.call("DELETE", GRANT)
        await rest(attack.server)
        assert attack.left(VICTIM) == []

    attacked(attack)


def attacked(work: Any) -> None:
    async def main() -> None:
        async with EmbeddedEngine(clock=HeldClock(NOW), settings={"namespacesMustExist": True}) as engine:
            found = Attack(engine)
            try:
                await found.prepare()
                await work(found)
            finally:
                found.server.close()

    asyncio.run(main())
