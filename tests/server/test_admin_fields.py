"""The fields of answers of the admin API, as real brokers of each version gave them.

`admin_fields.json` has the paths of fields that 2.10.5, 3.0.7, 4.0.7, 4.2.4 and 5.0.0-M1 showed beside scenarios of `make parity`, and
which of them did. ``*`` is any name. Fields of texts that users choose are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.commands import Flow, Subscribe, SubType
from streaming.broker.config import LINES
from tests.server.rest import PATH, TOPIC, Api, on_api

RECORDED: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "admin_fields.json").read_text())
NAMED = ("subscriptions", "cursors")
FREE = (
    "properties",
    "metadata",
    "subscriptionProperties",
    "cursorProperties",
    "consumersAfterMarkDeletePosition",
)

MISSING = re.compile(
    r"stats\..*(drainingHashes.*|msgExpired|first(ConsumedFlow|MessagesSent)Timestamp|readPositionWhenJoining)|"
    r"stats\.(topicCreation|lastPublish)TimeStamp|internalStats\..*last(LedgerCreated|LedgerSwitch)Timestamp|"
    r"non-persistent internalStats\.cursors\..*|internalStats\.ledgers\.(metadata|timestamp|properties)|internalStats\.(schemaLedgers|properties)\..*"
)
"""Fields that Magnetar does not have."""
OF_CONNECTIONS = re.compile(r"stats\..*\.(address|connectedSince|clientVersion|producerId)")
"""What only clients on sockets have."""
SOMETIMES = re.compile(
    r"stats\..*(topicEpoch|activeConsumerName|keySharedMode|keyHashRange.*|ownerBroker|oldestBacklogMessageSubscriptionName)|"
    r"stats\.deduplicationStatus|namespace\.allowed_topic_property_keys_for_metrics"
)
"""Fields that are there if there is something to say."""


def paths(value: Any, *above: str) -> Iterator[str]:
    """The paths of all fields in a value."""
    if isinstance(value, list):
        for each in value:
            yield from paths(each, *above)
    if not isinstance(value, dict) or (above and above[-1] in FREE):
        return
    for name, each in value.items():
        path = (*above, "*" if above and above[-1] in NAMED else name)
        yield ".".join(path)
        yield from paths(each, *path)


def is_one(known: re.Pattern[str], path: str) -> bool:
    return any(known.fullmatch(each) for each in (path, path.removeprefix("non-persistent ")))


async def use(api: Api, topic: str) -> None:
    """Two subscriptions, one of Key_Shared, with consumers who get messages."""
    types: tuple[SubType, ...] = ("Exclusive", "Key_Shared")
    for number, type_ in enumerate(types, 1):
        subscribe = Subscribe(
            connection="c", consumer_id=number, request_id=number, subscription=f"s{number}", subType=type_
        )
        await api.engine.submit(topic, subscribe)
        await api.engine.submit(topic, Flow(connection="c", consumer_id=number, messagePermits=10))
    await api.publish(3, topic, partition_key="k")


@pytest.mark.feature("I2")
@pytest.mark.parametrize("profile", LINES)
def test_answers_have_the_fields_of_the_version(profile: str) -> None:
    async def ask(api: Api) -> dict[str, Any]:
        other = TOPIC.replace("persistent", "non-persistent")
        await api.call("PUT", PATH)
        for topic in (TOPIC, other):
            await use(api, topic)
        non = f"/non-{PATH[1:]}"
        asked = {
            "stats": f"{PATH}/stats", "internalStats": f"{PATH}/internalStats", "partitions": f"{PATH}/partitions",
            "namespace": "/namespaces/public/n", "non-persistent stats": f"{non}/stats",
            "non-persistent internalStats": f"{non}/internalStats",
        }  # fmt: skip
        return {call: (await api.call("GET", path)).body for call, path in asked.items()}

    found = on_api(ask, profile)
    assert found.keys() == RECORDED.keys()
    for call, answer in found.items():
        ours = {f"{call}.{path}" for path in paths(answer)}
        real = {
            f"{call}.{path}"
            for path, versions in RECORDED[call].items()
            if versions == "all" or profile in versions.split()
        }
        unknown, lacking = ours - real, real - ours
        for known in (MISSING, OF_CONNECTIONS, SOMETIMES):
            lacking = {each for each in lacking if not is_one(known, each)}
        assert ({each for each in unknown if not is_one(SOMETIMES, each)}, lacking) == (set(), set())


def test_names_that_calls_have_are_names_like_others() -> None:
    """A tenant, a cluster and a namespace may be called as what has fields of a version."""

    async def ask(api: Api) -> list[int]:
        found = []
        for name in ("stats", "internalStats", "partitions"):
            await api.call("PUT", f"/tenants/{name}", {"allowedClusters": ["standalone"]})
            await api.call("PUT", f"/clusters/{name}", {"serviceUrl": "http://h:8080"})
            await api.call("PUT", f"/namespaces/public/{name}")
            paths = (
                f"/tenants/{name}",
                f"/clusters/{name}",
                f"/namespaces/{name}",
                f"/persistent/public/{name}",
                f"/namespaces/public/{name}",
            )
            found += [(await api.call("GET", path)).status for path in paths]
        return found

    assert on_api(ask) == [200] * 15
