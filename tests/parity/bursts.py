"""Producers that send more at once than a publish rate allows, and when the receipts come."""

import asyncio
import random
from collections import defaultdict, deque
from math import inf

import msgspec

from schemas.commands import MessageMetadata
from schemas.effects import Row
from streaming.protocol.codec import batch
from streaming.protocol.frames import frame
from streaming.server.clock import HeldClock
from streaming.server.embedded import EmbeddedEngine
from streaming.traces.conform import TraceComparison
from streaming.traces.session import Session, SessionRecord
from streaming.traces.trace import Trace
from tests.parity.recorder import Record, Recorder, Sent

EARLY, LATE = 150, 600
"""A receipt may come so many ms earlier or later than in Magnetar's time. A broker learns of a policy some ms after the call for it began, and
its clock for permits ticks each 8 ms. Later, as a busy machine lets broker and recorder wait: 40 messages without a rate take up to 0.4 s there."""

_SECONDS = 4.0
"""No burst takes much longer at its rate."""


class Bursts:
    """Some connections with a producer each on every topic. Each operation of a plan is a method, which returns whether there was anything to do."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._connections = [recorder.open() for _ in range(3)]
        self._sequences: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._rate: tuple[int, int] = (0, 0)
        self._here: set[tuple[int, int]] = set()
        recorder.listeners.append(self._hear)
        self.reopen()

    def reopen(self) -> None:
        """Create the producers that are gone."""
        recorder = self._recorder
        for place, connection in enumerate(self._connections):
            if connection not in recorder.connections:
                connection = self._connections[place] = recorder.open()
            for id_, topic in enumerate(recorder.topics):
                if (connection, id_) not in self._here:
                    recorder.ask(connection, "LOOKUP", topic=topic, authoritative=False)
                    said = recorder.ask(
                        connection, "PRODUCER", topic=topic, producer_id=id_, producer_name=f"p{place}",
                        user_provided_producer_name=True, producer_access_mode="Shared", epoch=0,
                    )  # fmt: skip
                    if said.get("cmd") == "PRODUCER_SUCCESS":
                        self._here.add((connection, id_))

    def burst(self, dice: random.Random) -> bool:
        """Messages all at once: of one connection to any topics, or of two, each to a topic of its own, as their order is not sure."""
        messages, size = self._rate
        topics = range(len(self._recorder.topics))
        alone = dice.choice(self._connections) if dice.random() < 0.7 else None
        sent = list[Sent]()
        left = dice.choice([0.5, 1, 2])  # seconds that they take at the rate
        while left > 0 and len(sent) < _MOST:
            topic = dice.choice(topics)
            payload, batched = b"x" * dice.choice([1, 20, 100]), dice.choice([1, 1, 1, 3])
            sent.append(
                self._message(self._connections[topic] if alone is None else alone, topic, payload, batched)
            )
            left -= max(batched / messages if messages else 0, batched * len(payload) / size if size else 0)
        self._recorder.burst(sent, seconds=_SECONDS)
        return True

    def set_rate(self, dice: random.Random) -> bool:
        """In messages, in bytes or both; of the topics by the seed, or of their namespace."""
        messages, size = dice.choice(
            [(3, 0), (5, 0), (10, 0), (40, 0), (0, 150), (0, 1000), (10, 400), (0, 0)]
        )
        body = {"publishThrottlingRateInMsg": messages or -1, "publishThrottlingRateInByte": size or -1}
        recorder = self._recorder
        # Never both, see `Administrator`.
        of = f"/namespaces/{recorder.namespace}" if recorder.name[-1] in "02468" else recorder.path
        self._rate = messages, size
        recorder.call("POST", f"{of}/publishRate", body, seconds=_APPLIED)
        return True

    def pause(self, dice: random.Random) -> bool:
        """Permits come back."""
        self._recorder.wait(dice.choice([0.2, 0.5, 1.2]))
        return True

    def cut_one(self, dice: random.Random) -> bool:
        """A connection is lost and comes back."""
        self._recorder.cut(dice.choice(self._connections))
        self.reopen()
        return True

    def _message(self, connection: int, id_: int, payload: bytes, batched: int) -> Sent:
        if (connection, id_) not in self._here:
            self.reopen()
        number = self._sequences[connection, id_]
        self._sequences[connection, id_] += batched
        place = self._connections.index(connection)
        fields: Record = {"producer_id": id_, "sequence_id": number}
        metadata: Record = {"producer_name": f"p{place}", "sequence_id": number}
        if batched > 1:
            payload = batch([{}] * batched, [payload] * batched)
            fields["num_messages"] = metadata["num_messages_in_batch"] = batched
        return Sent(connection, fields, metadata, payload)

    def _hear(self, record: Record) -> None:
        if record["cmd"] == "_TCP_CLOSE":
            self._here = {each for each in self._here if each[0] != record["conn"]}
        elif record["cmd"] == "CLOSE_PRODUCER":
            self._here.discard((record["conn"], record["fields"]["producer_id"]))


_MOST = 40
"""Messages of a burst without a rate."""

_APPLIED = 0.4
"""Seconds until a policy holds."""


def compared(trace: Trace) -> TraceComparison:
    """Do receipts come when an engine sends them that gets the same at the same times (`EARLY`, `LATE`), and do topics have the same then?

    Their positions are not compared: which connection's message comes first is a race. `conform` can't compare this, as the core carries out
    commands when they come.
    """
    session = Session(trace)
    commands = [command for _, command in session.run() if command is not None]
    snapshots = [each for each in trace.records if each["dir"] == "stats"]
    ours, counters = asyncio.run(_played(commands, snapshots))
    found, step, frames = list[tuple[str, str]](), "start", 0
    begun = 0.0
    for record in trace.records:
        step = record.get("step", step)
        if "step" in record:
            begun = record["t"]
        if record["dir"] == "stats":
            there, here = {name: record["stats"][name] for name in _COUNTERS}, counters.pop(0)
            if there != here:
                found.append((step, f"stats of {record['topic']}: recorded {there}, ours {here}"))
        if record["dir"] != "out" or record["cmd"] not in ("SEND_RECEIPT", "SEND_ERROR"):
            continue
        frames += 1
        stream = str(record["conn"]), record["fields"]["producer_id"]
        named = f"connection {stream[0]}, producer {stream[1]}"
        said = record["cmd"], record["fields"]["sequence_id"]
        at, *ours_said = ours[stream].pop(0) if ours[stream] else (0, "nothing", -1)
        if said != (*ours_said,):
            found.append((step, f"{named}: recorded {said}, ours {ours_said}"))
        elif not at - EARLY <= record["t"] <= at + LATE:
            text = f"recorded after {record['t'] - begun:.0f} ms, ours after {at - begun:.0f}"
            found.append((step, f"{named}: {said[0]} {text}"))
    if left := sum(map(len, ours.values())):
        found.append((step, f"ours has {left} receipts more"))
    return TraceComparison(trace.name, frames, len(snapshots), found)


_COUNTERS = ("msgInCounter", "bytesInCounter")

Receipt = tuple[int, str, int]
"""Its time (ms), its command, and the sequence id."""


async def _played(
    commands: list[SessionRecord], snapshots: list[Record]
) -> tuple[dict[tuple[str, int], list[Receipt]], list[dict[str, int]]]:
    """What an engine sends to each connection's producers, and the counters of topics at the times of snapshots."""
    clock, rows, counters = HeldClock(commands[0].timestamp), list[Row](), list[dict[str, int]]()
    looks = deque(snapshots)
    async with EmbeddedEngine(clock=clock, test_double=True) as engine:
        engine.connect(rows.extend)

        async def look(until: float) -> None:
            while looks and int(looks[0]["t"]) <= until:
                each = looks.popleft()
                await _move(engine, clock, int(each["t"]))
                stats = engine.broker.topic_stats(each["topic"])["stats"]
                counters.append({name: stats[name] for name in _COUNTERS})

        own = defaultdict[str, str](engine.new_connection)  # an engine pauses no other connections
        for command in commands:
            await look(command.timestamp)
            await _move(engine, clock, command.timestamp)
            connection = own[str(command.value.get("connection"))]
            value = command.value | ({"connection": connection} if "connection" in command.value else {})
            engine.post(connection, command.topic, msgspec.json.encode(value))
            await engine.tick()
        await look(inf)
        await _move(engine, clock, commands[-1].timestamp + 10_000)
    recorded = {name: number for number, name in own.items()}
    found = defaultdict[tuple[str, int], list[Receipt]](list)
    for row in rows:
        answer = frame(row.effect, lambda *_: (MessageMetadata("", 0, 0), b""))
        if answer is not None and answer.connection and answer.cmd in ("SEND_RECEIPT", "SEND_ERROR"):
            fields = answer.fields
            found[recorded[answer.connection], fields["producer_id"]].append(
                (row.clock, answer.cmd, fields["sequence_id"])
            )
    return found, counters


async def _move(engine: EmbeddedEngine, clock: HeldClock, to: int) -> None:
    while (due := engine.next_due()) <= to:
        clock.move_to(max(due, clock.now()))
        await engine.tick()
    clock.move_to(max(to, clock.now()))
    await engine.tick()
