"""The pytest plugin, as an application's tests use it: in a project that has folders named like Magnetar's packages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parent.parent.parent

SHOP = """
from datetime import timedelta

import pulsar
import pytest

import schemas, streaming  # the application's own

TOPIC = "orders"


@pytest.fixture
def client(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def test_a_week_in_a_moment(pulsar_broker, client):
    consumer = client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    producer.send(b"reminder", deliver_after=timedelta(days=7))
    producer.send(b"order")
    message = consumer.receive(10000)
    assert message.data() == b"order"
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "billing", show="inflight")] == [b"order"]
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "billing", show="delayed")] == [b"reminder"]
    before = pulsar_broker.now()
    assert pulsar_broker.pending_timers()
    pulsar_broker.advance(days=7)
    assert pulsar_broker.now() - before == 7 * 86_400_000
    late = consumer.receive(10000)
    assert late.data() == b"reminder"
    consumer.acknowledge(late)
    # what is published now carries the broker's time, not the machine's
    producer.send(b"later")
    assert consumer.receive(10000).publish_timestamp() == pulsar_broker.now()
    assert b"order" in [each.payload for each in pulsar_broker.peek(TOPIC, "billing")]


def test_each_test_has_a_fresh_broker(pulsar_broker, client):
    producer = client.create_producer(TOPIC)
    producer.send(b"x")
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    assert reader.read_next(10000).data() == b"x"
    assert not reader.has_message_available()


def test_a_failover_consumer_becomes_active_later(pulsar_broker, client):
    consumer = client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Failover)
    client.create_producer(TOPIC).send(b"x")
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "billing", show="inflight")] == []
    pulsar_broker.advance(seconds=1)
    assert consumer.receive(10000).data() == b"x"


def test_the_settings_and_the_version(pulsar_broker):
    found = pulsar_broker.admin("GET", "/brokers/configuration/runtime")
    assert (found["profile"], found["brokerDeduplicationEnabled"]) == ("3.0", "true")
    assert pulsar_broker.admin("GET", "/brokers/health") == "ok"


def test_a_failing_write(pulsar_broker, client):
    producer = client.create_producer(TOPIC, producer_name="p", batching_enabled=False)
    fault = pulsar_broker.fault("error", command="SEND", topic=TOPIC, producer="p")
    producer.send(b"x")  # the client connects again, and sends again
    fault.wait()
    assert fault.hits == 1


def test_a_lost_connection_and_a_refused_lookup(pulsar_broker, client):
    producer = client.create_producer(TOPIC, batching_enabled=False)
    with pulsar_broker.fault("disconnect", command="SEND", when={"sequence_id": 1}) as lost, \\
            pulsar_broker.fault("error", command="PRODUCER") as refused:
        for number in range(3):
            producer.send(str(number).encode())
        assert (lost.hits, refused.hits) == (1, 1)


def test_a_delayed_command(pulsar_broker, client):
    producer = client.create_producer(TOPIC, batching_enabled=False)
    slow = pulsar_broker.fault("delay", command="SEND", delay=timedelta(hours=1))
    sent = []
    producer.send_async(b"x", lambda result, id_: sent.append(result))
    slow.wait()
    assert sent == []
    pulsar_broker.advance(hours=1)
    producer.flush()
    assert len(sent) == 1


def test_time_that_is_skipped(pulsar_broker, client):
    consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    producer.send(b"late", deliver_after=timedelta(days=1))
    got = []

    def arrived():
        try:
            got.append(consumer.receive(20))
        except pulsar.Timeout:
            pass
        return got

    pulsar_broker.run_until(arrived, at_most=timedelta(days=2), patience=0.05)
    with pytest.raises(TimeoutError):
        pulsar_broker.run_until(lambda: False, at_most=timedelta(days=1), patience=0)
    before = pulsar_broker.now()
    assert pulsar_broker.run_until(lambda: True, at_most=timedelta(days=1), patience=0) == before
    producer.send(b"later", deliver_after=timedelta(days=1))
    pulsar_broker.clock("skip")
    assert consumer.receive(10000).data() == b"later"


def test_absolute_times_are_those_of_the_brokers_clock(pulsar_broker, client):
    consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    pulsar_broker.advance(hours=10)
    producer.send(b"at", deliver_at=pulsar_broker.now() + 3_600_000)
    pulsar_broker.advance(minutes=59)
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "s", show="delayed")] == [b"at"]
    pulsar_broker.advance(minutes=1)
    assert consumer.receive(10000).data() == b"at"
    # A client adds a delay to the machine's clock. It counts from the broker's, however far that has been moved.
    for delay in timedelta(minutes=30), timedelta(days=2):
        producer.send(b"after", deliver_after=delay)
        pulsar_broker.advance(seconds=delay.total_seconds() - 60)
        assert [each.payload for each in pulsar_broker.peek(TOPIC, "s", show="delayed")] == [b"after"]
        pulsar_broker.advance(minutes=1)
        assert consumer.receive(10000).data() == b"after"


def test_a_test_says_whose_the_delivery_times_are(pulsar_broker, client):
    consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    pulsar_broker.advance(hours=10)
    pulsar_broker.delivery_times("broker")
    producer.send(b"1", deliver_at=pulsar_broker.now() + 1234)  # no round delay
    pulsar_broker.advance(milliseconds=1234)
    pulsar_broker.advance(seconds=1)
    assert consumer.receive(10000).data() == b"1"
    pulsar_broker.delivery_times("client")
    producer.send(b"2", deliver_at=pulsar_broker.now() + 3_600_000)
    pulsar_broker.advance(hours=2)
    assert len(pulsar_broker.peek(TOPIC, "s", show="delayed")) == 1


def test_seeks_and_resets_by_time_are_on_the_brokers_clock(pulsar_broker, client):
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC, batching_enabled=False)
    producer.send(b"1")
    pulsar_broker.advance(hours=10)
    between = pulsar_broker.now()
    pulsar_broker.advance(hours=10)
    later = producer.send(b"2", event_timestamp=7)
    received = [consumer.receive(10000) for _ in range(2)]
    assert [each.event_timestamp() for each in received] == [0, 7]  # what the application says it is
    assert received[1].publish_timestamp() == pulsar_broker.now()
    consumer.acknowledge_cumulative(received[1])
    consumer.seek(between)
    assert consumer.receive(10000).data() == b"2"
    consumer.seek(received[1].publish_timestamp())
    assert consumer.receive(10000).data() == b"2"
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    reader.seek(between)
    assert reader.read_next(10000).data() == b"2"
    path = f"/persistent/public/default/{TOPIC}"
    found = pulsar_broker.admin("GET", f"{path}/messageid/{between}")
    assert (found["ledgerId"], found["entryId"]) == (later.ledger_id(), later.entry_id())
    pulsar_broker.admin("POST", f"{path}/subscription/s/resetcursor/{between}")
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "s")] == [b"2"]


def test_going_back(pulsar_broker, client):
    consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    producer.send(b"1")
    snapshot = pulsar_broker.snapshot()
    producer.send(b"2")
    assert len(pulsar_broker.peek(TOPIC, "s")) == 2
    pulsar_broker.restore(snapshot)
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "s")] == [b"1"]
    producer.send(b"3")
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "s")] == [b"1", b"3"]


def test_going_back_in_time(pulsar_broker, client):
    # What happens to the connections that are lost with it happens then, too.
    pulsar_broker.set_policy("public/default", "messageTTL", 600)
    client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    producer.send(b"1")
    producer.send(b"2", deliver_after=timedelta(days=1))
    snapshot, then = pulsar_broker.snapshot(), pulsar_broker.now()
    pulsar_broker.advance(days=2)
    assert pulsar_broker.peek(TOPIC, "s") == []
    pulsar_broker.restore(snapshot)
    assert pulsar_broker.now() == then
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "s")] == [b"1", b"2"]
    pulsar_broker.advance(seconds=1)
    assert len(pulsar_broker.peek(TOPIC, "s")) == 2


def test_what_expires(pulsar_broker, client):
    consumer = client.subscribe(TOPIC, "s")
    pulsar_broker.set_policy("public/default", "messageTTL", 3600)
    pulsar_broker.set_policy(TOPIC, "retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    client.create_producer(TOPIC, batching_enabled=False).send(b"x")
    assert len(pulsar_broker.peek(TOPIC, "s")) == 1
    pulsar_broker.advance(hours=2)
    assert pulsar_broker.peek(TOPIC, "s") == []
    assert pulsar_broker.admin("GET", "/clusters") == ["standalone"]
    with pytest.raises(Exception, match="404"):
        pulsar_broker.admin("GET", "/persistent/public/default/nothing/stats")


def test_holes(pulsar_broker, client):
    consumer = client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(3):
        producer.send(str(number).encode())
    messages = [consumer.receive(10000) for _ in range(3)]
    consumer.acknowledge(messages[1])
    consumer.close()  # sends what is acknowledged
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "s", show="holes")] == [b"1"]
    assert [each.payload for each in pulsar_broker.peek(TOPIC, "s")] == [b"0", b"2"]


def test_what_makes_no_sense_is_named(pulsar_broker):
    for call, text in [
        (lambda: pulsar_broker.fault("drop", command="FLY"), "FLY"),
        (lambda: pulsar_broker.fault("error", command="ACK"), "no answer"),
        (lambda: pulsar_broker.fault("error", error="Busy"), "error 'Busy': expected one of AuthenticationError, "),
        (lambda: pulsar_broker.fault("delay", delay=timedelta(milliseconds=-1)), "delay -1: expected 0 to "),
        (lambda: pulsar_broker.fault("delay", delay=timedelta(days=999)), "delay 86313600000: expected 0 to "),
        (lambda: pulsar_broker.fault("drop", topic="a b/c"), "topic 'a b/c': Invalid "),
        (lambda: pulsar_broker.fault("drop", when={"x": 1}), "when 'x': expected one of ack_type, "),
        (lambda: pulsar_broker.fault("drop", command="SEND", when={"ack_type": 1}), "when 'ack_type': expected one of connection, "),
        (lambda: pulsar_broker.fault("drop", times=0), "times 0: expected at least 1"),
        (lambda: pulsar_broker._call("DELETE", "/faults/7"), "400 .*there never was such a fault"),
        (lambda: pulsar_broker.peek("nothing", "s"), "no topic"),
        (lambda: pulsar_broker.peek("non-persistent://public/default/np", "s"), "np: a non-persistent topic keeps no messages"),
        (lambda: pulsar_broker.peek("nothing", "s", count=1001), "count 1001: expected at most 1000"),
        (lambda: pulsar_broker.advance(seconds=-1), "go back"),
        (lambda: pulsar_broker.restore(7), "no such snapshot"),
        (lambda: pulsar_broker.admin("GET", "/persistent/public/default/my börse/stats"), "404 .*my börse not found"),
        (lambda: pulsar_broker.token("shop"), 'pulsar_broker_settings need "tokens": "true"'),
        (lambda: pulsar_broker.delivery_times("mine"), "Invalid enum value 'mine'"),
        (lambda: pulsar_broker.advance(days=365 * 9000), "ends in the year 5138"),
    ]:
        with pytest.raises(Exception, match=text):
            call()
    with pulsar_broker.fault("drop", command="SEND"):
        pulsar_broker.reset()  # removes it


def test_what_a_double_keeps_has_a_bound(pulsar_broker):
    for call, text in [
        (pulsar_broker.snapshot, "1,000 snapshots"),
        (lambda: pulsar_broker.fault("drop", command="SEND"), "1,000 faults"),
    ]:
        for _ in range(1000):
            call()
        with pytest.raises(Exception, match=text):
            call()
"""

FAILS = """
import pulsar


def test_that_fails(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url)
    client.create_producer("orders").send(b"x")
    client.close()
    assert False
"""

FAILS_IN_SETUP = FAILS.replace("def test_that_fails", "@pytest.fixture\ndef orders")
FAILS_IN_SETUP = f"import pytest\n{FAILS_IN_SETUP}\n\ndef test_with_orders(orders): ...\n"


def pytest_in(folder: Path, *files: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project that has `files`."""
    for package in ("schemas", "streaming", "sinks"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    for name, text in files:
        (folder / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--durations=3",
    ]
    # Whoever needs a proxy for others needs none for a broker on this machine.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "http_proxy": "http://127.0.0.1:1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_a_shop_tests_its_application(tmp_path: Path) -> None:
    """Also as the documentation says."""
    document = (ROOT / "docs" / "guide" / "testing-your-application.md").read_text()
    example, settings = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    files = ("test_shop.py", SHOP), ("test_documented.py", example), ("conftest.py", settings)
    done = pytest_in(tmp_path, *files)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fails", [FAILS, FAILS_IN_SETUP], ids=["test", "setup"])
def test_the_log_of_a_failed_test_is_kept_and_replays(tmp_path: Path, fails: str) -> None:
    done = pytest_in(tmp_path, ("test_fails.py", fails))
    assert done.returncode == 1, done.stdout + done.stderr
    (kept,) = [line for line in done.stdout.splitlines() if line.startswith("log of the broker: ")]
    log = Path(kept.removeprefix("log of the broker: "))
    assert f"magnetar explain {log} TOPIC" in done.stdout
    assert '"command":"SEND"' in log.read_text()


LEAVES_A_CLIENT = """
import time
import pulsar

left = []


def test_that_leaves_its_client(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url)
    client.subscribe("orders", "billing", pulsar.ConsumerType.Shared, consumer_name="old")
    left.append((client, pulsar_broker.service_url))
    assert pulsar_broker.shut_out() == []


def test_that_comes_next(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url)
    consumer = client.subscribe("orders", "billing", pulsar.ConsumerType.Shared)
    until = time.monotonic() + 20
    while not (shut_out := pulsar_broker.shut_out()) and time.monotonic() < until:
        time.sleep(0.02)
    assert [(each.test.partition("::")[2], len(each.clients)) for each in shut_out] == [("test_that_leaves_its_client", 1)]
    producer = client.create_producer("orders")
    for number in range(10):
        producer.send(str(number).encode())
    assert [consumer.receive(10000).data() for _ in range(10)] == [str(number).encode() for number in range(10)]
    found = pulsar_broker.admin("GET", "/persistent/public/default/orders/stats")
    assert len(found["subscriptions"]["billing"]["consumers"]) == 1
    late = pulsar.Client(left[0][1], operation_timeout_seconds=1)  # made now with the former address
    try:
        late.create_producer("orders")
    except Exception:
        pass
    else:
        assert False, "a client came to the former address"
    late.close()
    client.close()
    raise ValueError("shown")


def test_that_comes_later(pulsar_broker):
    pulsar_broker.reset()  # keeps the address
    client = pulsar.Client(pulsar_broker.service_url)
    client.create_producer("orders").send(b"x")
    client.close()
    left[0][0].close()
"""


def test_a_client_that_a_test_leaves_is_shut_out_and_named(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, ("test_leaves.py", LEAVES_A_CLIENT))
    said = done.stdout + done.stderr
    assert "ValueError: shown" in said, said
    assert "1 failed, 2 passed" in done.stdout, said
    (at,) = re.findall(
        r"of test_leaves.py::test_that_leaves_its_client, which should close them.*\n(.*)", done.stdout
    )
    assert re.search(
        r"Pulsar-CPP.*: consumer old of subscription billing of persistent://public/default/orders", at
    )


NEEDS_TOKENS = """
from datetime import timedelta

import pulsar
import pytest


@pytest.fixture(scope="session")
def pulsar_broker_settings():
    return {"tokens": "true"}


def produced(url, token):
    authentication = None if token is None else pulsar.AuthenticationToken(token)
    client = pulsar.Client(url, authentication, operation_timeout_seconds=1)
    try:
        client.create_producer("orders").send(b"x")
    finally:
        client.close()


def test_tokens(pulsar_broker):
    produced(pulsar_broker.service_url, pulsar_broker.token("shop"))
    for bad in None, "x", pulsar_broker.token("shop", expires_in=timedelta(seconds=-10)):
        with pytest.raises(pulsar.PulsarException):
            produced(pulsar_broker.service_url, bad)
    assert pulsar_broker.admin("GET", "/persistent/public/default") == ["persistent://public/default/orders"]
"""


def test_clients_of_a_double_may_need_tokens(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, ("test_tokens.py", NEEDS_TOKENS))
    assert done.returncode == 0, done.stdout + done.stderr


HAS_AUTHORIZATION = """
import pulsar
import pytest


@pytest.fixture(scope="session")
def pulsar_broker_settings():
    return {"tokens": "true", "authorizationEnabled": "true", "superUserRoles": "root"}


def test_roles(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url, pulsar.AuthenticationToken(pulsar_broker.token("shop")))
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("orders")
    pulsar_broker.admin("POST", "/namespaces/public/default/permissions/shop", ["produce"])
    producer = client.create_producer("orders")
    producer.send(b"x")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe("orders", "s")
    root = pulsar.Client(pulsar_broker.service_url, pulsar.AuthenticationToken(pulsar_broker.token("root")))
    root.subscribe("orders", "s")
    snapshot = pulsar_broker.snapshot()
    pulsar_broker.admin("DELETE", "/namespaces/public/default/permissions/shop")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("orders")
    pulsar_broker.restore(snapshot)
    client.create_producer("orders").send(b"y")
    client.close()
    root.close()
"""


def test_a_double_has_authorization(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, ("test_roles.py", HAS_AUTHORIZATION))
    assert done.returncode == 0, done.stdout + done.stderr


ENDS_THE_BROKER = """
import os, signal
import psutil


def test_first(pulsar_broker):
    (broker,) = (each for each in psutil.Process().children() if "--admin-listen" in each.cmdline())
    assert os.getpgid(broker.pid) != os.getpgid(0)
    broker.terminate()
    broker.wait()
    pulsar_broker.now()


def test_of_others():
    pass


def test_that_comes_later(pulsar_broker):
    pulsar_broker.now()
"""


def test_a_broker_that_ends_in_a_test_fails_that_test_alone(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, ("test_ends.py", ENDS_THE_BROKER))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the broker has ended" in done.stdout
    assert "the log of the broker is lost" in done.stdout
    assert "1 failed, 2 passed" in done.stdout


ENDLESS = """
import time

def test_that_never_ends(pulsar_broker):
    print("FOLDER", pulsar_broker.log.parents[1], flush=True)
    time.sleep(600)
"""


def test_the_broker_ends_with_a_pytest_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        folder = next(line.split()[1] for line in killed.stdout if "FOLDER" in line).strip()
        brokers = [each for each in psutil.Process(killed.pid).children() if each.cwd() == folder]
        assert len(brokers) == 1
        killed.kill()
    assert not psutil.wait_procs(brokers, 60)[1]
    assert not Path(folder).exists()
