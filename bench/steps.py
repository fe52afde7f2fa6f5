"""`python -m bench.steps [CHECKOUT]`: what one SEND and one ACK go through, in this checkout or another one.

The calls of Magnetar's functions, how many functions, and in how many files, that one more command takes: in `magnetar serve` on a
socket, and in a fold of a log, which is what the operator does for a micro-batch. And the processor time of the server from a SEND to
its receipt, one at a time on an idle server.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pulsar

from streaming.kafka.local import HOST, free_port
from tests.e2e.processes import wait_until

TOPIC = "persistent://public/default/t"
SENDS = 2000
"""So many publishes give the processor time of one."""

_Place = tuple[str, int, str]
"""File, line and name of a function."""


class Steps(NamedTuple):
    """What one command goes through."""

    calls: int
    functions: int
    files: int

    @classmethod
    def of(cls, more: Counter[_Place], less: Counter[_Place]) -> "Steps":
        """What is in `more` and not in `less`."""
        left = more - less
        return cls(left.total(), len(left), len({file for file, _, _ in left}))


def _environment(checkout: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(checkout)}


def _command(result: Path, arguments: str) -> list[str]:
    return [
        sys.executable,
        str(Path(__file__).with_name("steps_counted.py")),
        str(result),
        *arguments.split(),
    ]


def _counted(result: Path) -> Counter[_Place]:
    return Counter({(file, line, name): count for file, line, name, count in json.loads(result.read_text())})


def folded(checkout: Path) -> tuple[Steps, Steps]:
    """One more SEND, which is delivered to a Shared consumer, and one more ACK in a log."""
    of = {"connection": "c", "topic": TOPIC}
    start: list[dict[str, Any]] = [
        {"command": "PRODUCER", "producer_id": 1, "request_id": 1, "producer_name": "p"},
        {"command": "SUBSCRIBE", "consumer_id": 1, "request_id": 2, "subscription": "s", "subType": "Shared"},
        {"command": "FLOW", "consumer_id": 1, "messagePermits": 1000},
    ]

    def send(number: int) -> dict[str, Any]:
        metadata = {"producer_name": "p", "sequence_id": number, "publish_time": 1}
        return {"command": "SEND", "producer_id": 1, "sequence_id": number, "payload": "eA==", "metadata": metadata}  # fmt: skip

    ack = {"command": "ACK", "consumer_id": 1, "ack_type": "Individual", "message_id": [{"ledgerId": 1, "entryId": 0}]}  # fmt: skip

    def calls(*commands: dict[str, Any]) -> Counter[_Place]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lines = [
                json.dumps(of | command | {"timestamp": time}) for time, command in enumerate(commands, 1)
            ]
            (folder / "log.jsonl").write_text("\n".join(lines))
            subprocess.run(
                _command(folder / "calls.json", "replay log.jsonl --no-spark --partitions 1 --out out"),
                env=_environment(checkout), cwd=folder, check=True, capture_output=True,
            )  # fmt: skip
            return _counted(folder / "calls.json")

    two = calls(*start, send(0), send(1))
    return Steps.of(two, calls(*start, send(0))), Steps.of(calls(*start, send(0), send(1), ack), two)


@contextmanager
def _serving(checkout: Path, folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = free_port()
    serve = f"serve --data data --listen {HOST}:{port} --admin-listen {HOST}:{free_port()} --no-fsync"
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            _command(folder / "calls.json", serve), env=_environment(checkout), cwd=folder, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        wait_until(lambda: b"serving" in (folder / "said.txt").read_bytes(), "the server", process)
        yield port, process
    finally:
        process.terminate()
        process.wait()


def served(checkout: Path) -> tuple[Steps, Steps, float]:
    """One more SEND and one more ACK on sockets, and the processor time (µs) from a SEND to its receipt."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = folder / "calls.json"
        with _serving(checkout, folder) as (port, server):
            client = pulsar.Client(f"pulsar://{HOST}:{port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))  # fmt: skip
            consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
            acked = client.create_producer(TOPIC, batching_enabled=False)
            alone = client.create_producer(f"{TOPIC}-alone", batching_enabled=False)

            def calls(do: Callable[[], object]) -> Counter[_Place]:
                result.unlink(missing_ok=True)
                server.send_signal(signal.SIGUSR1)
                time.sleep(0.1)
                do()
                time.sleep(0.3)
                server.send_signal(signal.SIGUSR2)
                wait_until(result.exists, "the calls", server)
                return _counted(result)

            def least(do: Callable[[], object]) -> Steps:
                idle = calls(lambda: None)
                return min(Steps.of(calls(do), idle) for _ in range(5))

            def ack() -> None:
                consumer.acknowledge(received.pop())

            for _ in range(30):
                acked.send(b"x")
                alone.send(b"x")
            received = [consumer.receive(5_000) for _ in range(30)]
            time.sleep(0.5)
            send, acknowledge = least(lambda: alone.send(b"x")), least(ack)
            before = _processor_seconds(server.pid)
            for _ in range(SENDS):
                alone.send(b"x" * 100)
            spent = _processor_seconds(server.pid) - before
            client.close()
        return send, acknowledge, spent / SENDS * 1e6


def _processor_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def main(checkout: Path) -> None:
    send, ack = folded(checkout)
    print("| one more command | calls | functions | files |\n|---|---|---|---|")
    sent, acked, microseconds = served(checkout)
    for what, steps in (
        ("SEND, in a log", send), ("ACK, in a log", ack), ("SEND, on a socket", sent), ("ACK, on a socket", acked),
    ):  # fmt: skip
        print(f"| {what} | {steps.calls} | {steps.functions} | {steps.files} |")
    print(f"\nFrom a SEND to its receipt: {microseconds:.0f} µs of processor time")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
