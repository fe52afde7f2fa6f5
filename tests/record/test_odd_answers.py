"""An admin URL that answers with 200, but not like Pulsar's admin API, such as a proxy's page: a sentence, whoever asks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming.mirror.source import MirroredCluster
from streaming.record.capture import NotCaptured, capture
from streaming.record.client import ReadFailed
from streaming.record.observe import observe
from streaming.record.record import known_of
from streaming.record.rest import CallFailed, Rest, Said

pytestmark = pytest.mark.feature("K2")

T = "/persistent/public/default/t"
RIGHT: dict[str, Any] = {
    "/brokers/version": "4.0.7",
    "/brokers/configuration/runtime": {"clusterName": "c"},
    "/tenants": ["public"],
    "/tenants/public": {"adminRoles": [], "allowedClusters": ["c"]},
    "/namespaces/public": ["public/default"],
    "/namespaces/public/default": {},
    "/persistent/public/default/partitioned": ["persistent://public/default/t"],
    "/non-persistent/public/default/partitioned": [],
    "/persistent/public/default": ["persistent://public/default/t-partition-0"],
    f"{T}/partitions": {"partitions": 0},
    f"{T}/stats": {"subscriptions": {"s": {}}},
    f"{T}/internalStats": {
        "ledgers": [{"ledgerId": 3}],
        "cursors": {"s": {"markDeletePosition": "3:-1", "individuallyDeletedMessages": "[]"}},
    },
}
ODD: list[Any] = [
    None, "<html><p>Sign in</p></html>", [1, None, {"a": []}], {"a": {"b": None}}, 5, ["x"], {"partitions": -1}, {"partitions": "1"},
    {"clusterName": ["c"], "publishRate": {"c": {}, "d": None}}, {"partitions": 2**31 - 1}, {"subscriptions": {"s": 1}, "ledgers": [], "cursors": {}}, {"ledgers": [{}], "cursors": {"s": {"markDeletePosition": "x"}}},
]  # fmt: skip


class Answering(Rest):
    """An admin API of which one call, or each, has an odd answer."""

    def __init__(self, odd_path: str | None, odd: Any) -> None:
        super().__init__("http://localhost:8080")
        self._odd_path, self._odd = odd_path, odd

    def call(self, method: str, path: str, body: Any = None) -> Said:
        assert method == "GET"
        path = path.partition("?")[0]
        if self._odd_path in (None, path):
            return Said(200, self._odd)
        return Said(200, RIGHT[path]) if path in RIGHT else Said(404, {"reason": "not found"})


def captured(rest: Rest, given: str, folder: Path) -> object:
    return capture("pulsar://127.0.0.1:1", rest, [given], folder / "log.jsonl")


def failure(call: Callable[[], object]) -> str:
    """What a call says if it fails as its command expects."""
    try:
        call()
    except (CallFailed, ReadFailed, NotCaptured) as error:  # there is no broker to read from
        return str(error)
    return ""


@pytest.mark.parametrize("odd", ODD, ids=str)
@pytest.mark.parametrize("path", [None, *RIGHT])
def test_nobody_stumbles(path: str | None, odd: Any, tmp_path: Path) -> None:
    rest = Answering(path, odd)
    known_of(rest)  # which says what is missing
    for given in ("public/default", "persistent://public/default/t"):
        failure(lambda given=given: MirroredCluster(rest, [given]).find())  # type: ignore[misc]
        failure(lambda given=given: captured(rest, given, tmp_path))  # type: ignore[misc]


def test_a_cluster_whose_name_is_no_text() -> None:
    """Rates of a namespace are those of a cluster."""
    odd = Answering("/brokers/configuration/runtime", {"clusterName": ["c"]})
    rates = {
        "publishMaxMessageRate": {"c": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 5}}
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RIGHT, "/namespaces/public/default", rates)
        known = known_of(odd)
    assert [each.body for each in known.calls if each.path == "/namespaces/public/default"] != []


def test_more_partitions_than_there_may_be(tmp_path: Path) -> None:
    """None of them is named."""
    rest = Answering(f"{T}/partitions", {"partitions": 2**31 - 1})
    topic = "persistent://public/default/t"
    why = f"GET {T}/partitions: 2,147,483,647 partitions: at most 10,000 are allowed here"
    for given in ("public/default", topic):
        found = MirroredCluster(rest, [given]).find()
        assert (found.topics, found.partitioned, found.missing) == ([], {}, {topic: why})
        assert failure(lambda given=given: captured(rest, given, tmp_path)) == why  # type: ignore[misc]
    with pytest.raises(CallFailed, match="2,147,483,647 partitions"):
        observe(rest, topic, 0)


def test_what_they_say(tmp_path: Path) -> None:
    rest = Answering(None, "<html>")
    for said in (
        known_of(rest).missing[0], failure(lambda: MirroredCluster(rest, ["public/default"]).find()),
        failure(lambda: captured(rest, "public/default", tmp_path)),
    ):  # fmt: skip
        assert "does not answer like Pulsar's admin API" in said
        assert "is it one? Give the URL of a broker" in said
