"""Pulsar's own `pulsar-admin` (Java, from Maven) on the admin REST API, before both engines."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.server.conftest import Running, java

pytestmark = [pytest.mark.slow, pytest.mark.feature("I7"), pytest.mark.timeout(3000)]

PROGRAM = Path(__file__).parent / "pulsar_admin" / "Commands.java"

TOPIC = "persistent://acme/n/t"
FULL = "persistent://public/default/full"
"""It has a subscription with two messages."""

COMMANDS = f"""\
brokers healthcheck
brokers list standalone
brokers leader-broker
clusters list
clusters get standalone
tenants create acme --allowed-clusters standalone
tenants list
tenants get acme
namespaces create acme/n
namespaces list acme
namespaces policies acme/n
namespaces set-message-ttl acme/n --messageTTL 60
namespaces get-message-ttl acme/n
namespaces remove-message-ttl acme/n
namespaces set-retention acme/n --size 10M --time 10m
namespaces get-retention acme/n
namespaces set-backlog-quota acme/n --limit 1M --policy producer_exception
namespaces get-backlog-quotas acme/n
namespaces set-deduplication acme/n --enable
namespaces get-deduplication acme/n
namespaces set-max-producers-per-topic acme/n -p 5
namespaces set-subscription-expiration-time acme/n -t 5
namespaces set-delayed-delivery acme/n --enable --time 1s
namespaces get-delayed-delivery acme/n
namespaces set-dispatch-rate acme/n --msg-dispatch-rate 10
namespaces get-dispatch-rate acme/n
namespaces grant-permission acme/n --role r --actions produce,consume
namespaces permissions acme/n
topics create {TOPIC}
topics create-partitioned-topic persistent://acme/n/p -p 3
topics update-partitioned-topic persistent://acme/n/p -p 4
topics list acme/n
topics list-partitioned-topics acme/n
topics get-partitioned-topic-metadata persistent://acme/n/p
topics create-subscription {TOPIC} -s s -m earliest
topics create-subscription persistent://acme/n/p -s s
topics subscriptions persistent://acme/n/p
topics stats {TOPIC}
topics partitioned-stats persistent://acme/n/p --per-partition
topics stats-internal {TOPIC}
topics partitioned-stats-internal persistent://acme/n/p
topics info-internal {TOPIC}
topics last-message-id {TOPIC}
topics peek-messages {FULL} -s s -n 2
topics examine-messages {FULL} -i earliest -m 1
topics skip {TOPIC} -s s -n 1
topics clear-backlog {TOPIC} -s s
topics reset-cursor {TOPIC} -s s -t 1h
topics reset-cursor {TOPIC} -s s -m 1:0
topics analyze-backlog {TOPIC} -s s
topics update-properties {TOPIC} -p a=b
topics get-properties {TOPIC}
topics lookup {TOPIC}
topics partitioned-lookup persistent://acme/n/p
topics unload {TOPIC}
topics compact {TOPIC}
topicPolicies set-message-ttl {TOPIC} --ttl 60
topicPolicies get-message-ttl {TOPIC}
topicPolicies get-retention {TOPIC} --applied
topicPolicies set-max-producers {TOPIC} -p 3
topicPolicies get-max-producers {TOPIC}
schemas get {TOPIC}
topics terminate {TOPIC}
topics unsubscribe persistent://acme/n/p -s s
topics delete {TOPIC}
topics delete-partitioned-topic persistent://acme/n/p
namespaces clear-backlog acme/n -force
namespaces unload acme/n
namespaces delete acme/n
tenants delete acme
"""

FAILING = {f"topics compact {TOPIC}", f"schemas get {TOPIC}"}
"""Compaction is not supported, and the topic has no schema."""


def test_its_commands(broker: Running, tmp_path: Path) -> None:
    with broker.client() as client:
        client.subscribe(FULL, "s").close()
        producer = client.create_producer(FULL, batching_enabled=False)
        producer.send(b"m0")
        producer.send(b"m1")
    commands, config = tmp_path / "commands", tmp_path / "client.conf"
    commands.write_text(COMMANDS)
    urls = f"{broker.server.admin_url}/", broker.service_url
    config.write_text("webServiceUrl={}\nbrokerServiceUrl={}\n".format(*urls))
    done = subprocess.run(
        java(PROGRAM, config, commands),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2900,
    )
    output = done.stdout
    assert done.returncode == 0, output[-3000:]
    said = dict(re.findall(r"^\$ (.*)\n((?:.*\n)*?)=> ", output, re.M))
    codes = dict(re.findall(r"^\$ (.*)\n(?:.*\n)*?=> (-?\d+)$", output, re.M))
    assert list(codes) == COMMANDS.splitlines()
    failing = {command for command, code in codes.items() if code != "0"}
    assert failing == FAILING, "\n".join(said[each] for each in failing - FAILING)
    assert "m0" in said[f"topics peek-messages {FULL} -s s -n 2"]
    assert "m1" in said[f"topics peek-messages {FULL} -s s -n 2"]
    assert "standalone" in said["clusters list"]
    assert '"retentionSizeInMB" : 10' in said[f"topicPolicies get-retention {TOPIC} --applied"]
    assert "is not supported" in said[f"topics compact {TOPIC}"]
