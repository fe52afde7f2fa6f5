"""`magnetar run` and the echo beside it, as programs of their own: start, latency, throughput from Kafka, and idling."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import psutil
import pyarrow as pa
from kafka import KafkaConsumer, KafkaProducer

from bench import MAGNETAR, logs
from bench.memory import used
from schemas.commands import MessageMetadata, Producer, Send, to_binary
from streaming.kafka.client import administration
from streaming.kafka.config import PLAIN
from streaming.kafka.local import LocalKafka
from streaming.kafka.produce import produce_log
from streaming.kafka.topics import ensure_topic, topic_offsets
from streaming.kafka.url import KafkaUrl

Program = Literal["magnetar", "echo"]
PROGRAMS: tuple[Program, ...] = ("magnetar", "echo")


class Live(NamedTuple):
    """Seconds to the first answer, and of processor time until then; median and 99th percentile of the time to an answer
    (s); seconds of processor time per second without traffic."""

    start: float
    start_processor: float
    p50: float
    p99: float
    idle: float


class Drained(NamedTuple):
    """What it cost to answer a backlog in Kafka: answers, seconds, seconds of processor time."""

    answers: int
    seconds: float
    processor: float


def live(
    program: Program, kafka: LocalKafka, folder: Path, *, rate: int, seconds: float, idle: float
) -> Live:
    """Start the program on an empty topic, send `rate` messages per second, then nothing for `idle` seconds."""
    with _started(program, kafka, folder, cores=1) as (process, begun, commands, answers):
        sent: list[float] = []
        took: list[float] = []
        first = threading.Event()
        ended = threading.Event()

        def receive() -> None:
            for value in _values(kafka, answers, ended):
                if (number := _number(program, value)) is not None:
                    took.append(time.perf_counter() - sent[number])
                    first.set()

        receiver = threading.Thread(target=receive)
        receiver.start()
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
        say = _sayer(producer, commands)
        say(Producer(connection="c", producer_id=1, request_id=1, producer_name="p"))

        def publish(number: int) -> None:
            sent.append(time.perf_counter())
            metadata = MessageMetadata("p", number, 1_700_000_000_000)
            say(
                Send(
                    connection="c",
                    producer_id=1,
                    sequence_id=number,
                    metadata=metadata,
                    payload_bytes=bytes(100),
                )
            )

        publish(0)
        first.wait()
        start, processor = time.perf_counter() - begun, sum(used(process.pid))
        time.sleep(5)  # the first micro-batches compile
        took.clear()
        tick = time.perf_counter()
        for number in range(1, int(rate * seconds) + 1):
            publish(number)
            time.sleep(max(0.0, tick + number / rate - time.perf_counter()))
        time.sleep(5)
        before, at = sum(used(process.pid)), time.perf_counter()
        time.sleep(idle)
        per_second = (sum(used(process.pid)) - before) / (time.perf_counter() - at)
        ended.set()
        receiver.join()
        return Live(
            start, processor, float(np.quantile(took, 0.5)), float(np.quantile(took, 0.99)), per_second
        )


def drain(program: Program, kafka: LocalKafka, folder: Path, records: pa.Table, cores: int) -> Drained:
    """Let the program answer a tenth of the log, so that its code is compiled. Then hold it while Kafka gets the rest, and
    measure from its release to the last answer."""
    first, rest = records.slice(0, len(records) // 10), records.slice(len(records) // 10)
    with _started(program, kafka, folder, cores=cores, records=first) as (process, _, commands, answers):
        _await_answers(kafka, answers, len(first))
        with _held(process.pid):
            produce_log(rest, f"kafka://{kafka.bootstrap}/{commands}", partitions=logs.PARTITIONS)
            before, at = sum(used(process.pid)), time.perf_counter()
        _await_answers(kafka, answers, len(records))
        return Drained(len(rest), time.perf_counter() - at, sum(used(process.pid)) - before)


def _await_answers(kafka: LocalKafka, topic: str, count: int) -> None:
    """Wait until the topic has `count` records. Reading them would take a processor from the program."""
    with administration(KafkaUrl(kafka.bootstrap, topic), PLAIN) as admin:
        while sum(end for _, end in topic_offsets(admin, topic).values()) < count:
            time.sleep(0.05)


@contextmanager
def _held(pid: int) -> Iterator[None]:
    """Stop a program and all that it started, and let them go on."""
    program = psutil.Process(pid)
    held = [program, *program.children(recursive=True)]
    try:
        _each(held, psutil.Process.suspend)
        yield
    finally:
        _each(held, psutil.Process.resume)


def _each(processes: Iterable[psutil.Process], call: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # Hadoop starts programs that end at once
            call(process)


@contextmanager
def _started(
    program: Program, kafka: LocalKafka, folder: Path, *, cores: int, records: pa.Table | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], float, str, str]]:
    """The running program, when it was started, and its topics."""
    folder.mkdir(parents=True)
    commands, answers = f"commands-{folder.name}", f"answers-{folder.name}"
    for name in (commands, answers):
        ensure_topic(KafkaUrl(kafka.bootstrap, name), logs.PARTITIONS, PLAIN)
    if records is not None:
        produce_log(records, f"kafka://{kafka.bootstrap}/{commands}", partitions=logs.PARTITIONS)
    begun = time.perf_counter()
    with subprocess.Popen(
        _command(program, kafka.bootstrap, commands, answers, folder, cores),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process, begun, commands, answers
        finally:
            if program == "magnetar":
                process.terminate()
            else:
                process.communicate()


def _command(
    program: Program, bootstrap: str, commands: str, answers: str, folder: Path, cores: int
) -> Sequence[str]:
    if program == "echo":
        return [
            sys.executable,
            "-m",
            "bench.echo",
            bootstrap,
            commands,
            answers,
            str(folder / "checkpoint"),
            str(cores),
        ]
    return [
        MAGNETAR, "run", "--ingress", f"kafka://{bootstrap}/{commands}", "--responses", f"kafka://{bootstrap}/{answers}",
        "--checkpoint", str(folder / "checkpoint"), "--store", str(folder / "store"), "--trigger", "0s",
        "--cores", str(cores),
    ]  # fmt: skip


def _sayer(producer: KafkaProducer, commands: str) -> Any:
    topic = logs.topic(0)

    def say(command: Any) -> None:
        producer.send(commands, to_binary(command), key=topic.encode(), partition=0)

    return say


def _values(kafka: LocalKafka, topic: str, ended: threading.Event) -> Iterator[bytes]:
    consumer = KafkaConsumer(topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
    while not ended.is_set():
        for records in consumer.poll(timeout_ms=100).values():
            for record in records:
                yield record.value
    consumer.close()


def _number(program: Program, value: bytes) -> int | None:
    """The sequence id in an answer to a SEND."""
    if program == "magnetar":
        answer = msgspec.json.decode(value)
        return answer["sequence_id"] if answer["kind"] == "SEND_RECEIPT" else None
    command = msgspec.msgpack.decode(value)
    return command["sequence_id"] if command["command"] == "SEND" else None
