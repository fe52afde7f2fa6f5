"""What the page gets: figures, history, rows and explanations, and what each request may cost."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow.compute as pc
import pytest

from schemas.metrics import DriftMetrics, PartitionMetrics, SubscriptionMetrics, TopicMetrics
from streaming.answers.explain import life
from streaming.answers.explain.delivery import builtins
from streaming.answers.history.folders import Budget, Folders, TooMuch
from streaming.fold.records import StateRow
from streaming.metrics.endpoint import Endpoint, EndpointError
from streaming.metrics.query import BatchProgress, QueryMetrics
from streaming.metrics.topics import MetricsSnapshot, TopicFigures
from streaming.ui import application as app
from streaming.ui import explanation, figures, history
from streaming.ui.application import application
from streaming.ui.explanation import CannotAnswer, Gone, Question, Task, explain
from streaming.ui.history import EVERY_MS, POINTS, SERIES, SUBSCRIPTIONS, SampleHistory
from streaming.ui.output_rows import LOSSES, flows, latest
from streaming.ui.view import FolderView, RunView, View
from tests.e2e.processes import wait_until
from tests.ui.log import HOSTILE, HOSTILE_PRODUCER, HOSTILE_SUBSCRIPTION, QUOTA, START, TTL

NOTHING = (0.0,) * 6
EVERY = pc.field("clock") >= 0


def subscription(name: str, backlog: int) -> SubscriptionMetrics:
    return SubscriptionMetrics(
        name, 0, backlog, backlog, 0, backlog * 10, 0, False, 0, 0, 0, 0, NOTHING, NOTHING
    )


def topic(name: str, storage: int, backlogs: Iterable[int] = (1,), quota: int = -1) -> TopicMetrics:
    found = [subscription(f"s{number}", backlog) for number, backlog in enumerate(backlogs)]
    return TopicMetrics(
        name,
        1,
        found,
        0,
        0,
        storage,
        storage // 2,
        0,
        0,
        quota,
        -1,
        None,
        0,
        0,
        0,
        0,
        0,
        (2.0, 1.0),
        (0.0, 0.0),
    )


EQUAL = DriftMetrics(0, 0, 0, 0, "equal to the source")


def mirrored() -> Iterable[TopicMetrics]:
    """Two shadow topics: one that differs, and one that was never looked at; and a topic that is none."""
    differs, equal = topic(HOSTILE, 5000), topic(QUOTA, 6000)
    differs.drift, differs.source_seen = (
        DriftMetrics(3, 0, 0, -2000, "less is stored than on the source"),
        START,
    )
    subscription = differs.subscriptions[0]
    subscription.name = HOSTILE_SUBSCRIPTION
    subscription.drift = DriftMetrics(
        -7, -5, 2, 0, "unknown: entries were passed here that the source still has"
    )
    equal.drift = equal.subscriptions[0].drift = EQUAL
    return differs, equal, topic(TTL, 7000)


def snapshot(*topics: TopicMetrics, time: int = 0) -> MetricsSnapshot:
    found = TopicFigures()
    found.update(PartitionMetrics(0, "standalone", time, 0, 60_000, 1, [*topics], [], {}))
    return found.snapshot(time)


def get(
    view: View, path: str, *, host: str = "127.0.0.1:1", method: str = "GET", **asked: Any
) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    status: list[str] = []
    environ = {
        "PATH_INFO": path,
        "REQUEST_METHOD": method,
        "HTTP_HOST": host,
        "QUERY_STRING": urlencode(asked),
    }
    (body,) = application(view)(environ, lambda line, _: status.append(line))
    return int(status[0][:3]), body.decode() if path == "/" else json.loads(body)


def answer(view: View, path: str, **asked: Any) -> Any:
    status, found = get(view, f"/api/{path}", **asked)
    assert status == 200, found
    return found


# -- a finished replay


def test_topics_and_subscriptions(view: FolderView) -> None:
    found = answer(view, "topics", order="storage")
    assert [row["topic"] for row in found["rows"]] == [QUOTA, TTL, HOSTILE]
    assert found["total"] == 3
    assert [row["topic"] for row in answer(view, "topics", search="night")["rows"]] == [TTL]
    rows = answer(view, "subscriptions", search=HOSTILE_SUBSCRIPTION)["rows"]
    assert [(row["topic"], row["subscription"], row["backlog"]) for row in rows] == [
        (HOSTILE, HOSTILE_SUBSCRIPTION, 1)
    ]
    one = answer(view, "topic", topic=QUOTA)
    (quota,) = one["quotas"]
    assert 0 < quota["ratio"] <= 1
    assert quota["limit"] == 4000
    assert quota["used"] == one["backlogSize"]
    assert quota["evictions"] > 0
    assert [row["subscription"] for row in one["rows"]] == ["archive"]
    overview = answer(view, "overview")
    assert overview["quotas"][0] == quota
    assert overview["totals"]["topics"] == overview["totals"]["subscriptions"] == 3
    assert overview["status"]["kind"] == "replay"
    assert answer(view, "batches") == []


def test_the_latest_losses_and_their_reasons(view: FolderView) -> None:
    found = answer(view, "latest")
    assert found["complete"]
    clocks = [row["clock"] for row in found["rows"]]
    assert clocks == sorted(clocks, reverse=True)
    assert {row["kind"] for row in found["rows"]} == {*LOSSES}
    (evicted, *_) = answer(view, "latest", kinds="EVICTED", most=1)["rows"]
    assert evicted["policy"] == "consumer_backlog_eviction destination_storage 4000 B (namespace)"
    assert evicted["cause"].startswith("backlog 4")
    expired = answer(view, "latest", kinds="EXPIRED", topic=TTL)["rows"]
    assert {row["policy"] for row in expired} == {"messageTTL 3600 s (namespace)"}
    assert answer(view, "latest", kinds="EXPIRED", topic=QUOTA)["rows"] == []
    (refused,) = answer(view, "latest", kinds="QUARANTINED")["rows"]
    assert refused["rule"] == "malformed"


@pytest.mark.parametrize("what", ["tables/kind=EVICTED", "."])
def test_files_that_go_away_meanwhile_are_no_answer(replayed: Path, tmp_path: Path, what: str) -> None:
    shutil.copytree(replayed, tmp_path / "out")
    found = Folders.of(tmp_path / "out")
    pages = FolderView(str(tmp_path / "out"), found, found.states, finished=True)
    assert get(pages, "/api/latest")[0] == 200
    (tmp_path / "out" / what).rename(tmp_path / "away")
    status, body = get(pages, "/api/latest")
    assert status == 500
    assert "is incomplete" in str(body) or "was moved or removed" in str(body)


def test_the_latest_rows_are_those_of_the_table(replayed: Path, view: FolderView) -> None:
    assert view.tables is not None
    every = sorted(
        (row["clock"], row["partition"], row["offset"], row["ordinal"])
        for row in Folders.of(replayed).rows(LOSSES["LEDGER_DELETED"], EVERY)
    )
    for most in (1, 3, len(every), len(every) + 5):
        rows = latest(view.tables, ["LEDGER_DELETED"], most, None, Budget(10, 10**6))["rows"]
        found = [(row["clock"], row["partition"], row["offset"], row["ordinal"]) for row in rows]
        assert found == every[::-1][:most]


def test_a_budget_that_is_too_small(replayed: Path, view: FolderView) -> None:
    assert view.tables is not None
    assert latest(view.tables, ["EVICTED"], 10, None, Budget(10, 0)) == {"rows": [], "complete": False}
    found = Folders.of(replayed)
    found.budget = Budget(10, 1)
    with pytest.raises(TooMuch, match="more than the limit of 1 rows"):
        flows(found, None, 0)
    found.budget = Budget(0, 10**6)
    with pytest.raises(TooMuch, match="longer than the limit of 0 s"):
        list(found.rows(LOSSES["QUARANTINED"], EVERY))


def test_storage_over_time_leads_to_that_of_the_state(replayed: Path, view: FolderView) -> None:
    found = answer(view, "history")
    storage = sum(row["storage"] for row in answer(view, "topics")["rows"])
    assert found["storage"][-1] == storage
    first = found["storage"][0]
    assert 0 <= first < storage
    assert (sum(found["stored"]), sum(found["sent"])) == (180 + 60 + 1, 3)
    one = answer(view, "history", topic=QUOTA)
    assert sum(one["stored"]) == 180
    assert sum(one["evicted"]) == sum(
        row["entries"] for row in answer(view, "latest", kinds="EVICTED")["rows"]
    )
    assert one["times"][-1] >= START + 2 * 60_000 * 180
    assert answer(view, "history", topic="persistent://no/such/topic") is None


def test_explanations_are_those_of_the_command(replayed: Path, view: FolderView) -> None:
    wanted = builtins(life.by_sequence_id(Folders.of(replayed), QUOTA, "web", 3))
    found = answer(view, "explain", topic="shop/day/clicks", producer="web", sequence_id=3)
    assert found == json.loads(json.dumps(wanted))
    assert found[0]["subscriptions"][0]["outcome"] == "evicted"
    assert answer(view, "explain", topic=QUOTA, position=found[0]["position"]) == found
    (hostile,) = answer(view, "explain", topic=HOSTILE, producer=HOSTILE_PRODUCER, sequence_id=0)
    assert hostile["fate"] == "stored"


@pytest.mark.parametrize("position", ["3", "a:b", "-1:4", "3:²", f"1:{10**18}"])
def test_what_names_no_message_is_wrong(position: str, view: FolderView) -> None:
    status, found = get(view, "/api/explain", topic=QUOTA, position=position)
    assert status == 400
    assert f"position {position!r}: expected LEDGER:ENTRY, such as 3:42" in json.dumps(
        found, ensure_ascii=False
    )


def test_policies(view: FolderView) -> None:
    found = {row["policy"]: row for row in answer(view, "explain", about="policies", topic=QUOTA)}
    assert found["destination_storage"]["value"]["limitSize"] == 4000
    assert found["destination_storage"]["level"] == "namespace"
    assert (found["messageTTL"]["value"], found["messageTTL"]["level"]) == (0, "broker")
    namespaces = answer(view, "explain", about="policies", search="night")
    assert namespaces == {
        "rows": [
            {
                "namespace": "shop/night",
                "policies": [{"policy": "messageTTL", "value": 3600, "level": "namespace"}],
            }
        ],
        "total": 1,
    }


def test_a_twin() -> None:
    found = figures.twin(snapshot(*mirrored()), "", "drift", 0)
    assert found["rows"] == [
        {
            "topic": HOSTILE, "subscription": HOSTILE_SUBSCRIPTION, "entries": -7, "markDelete": -5, "messages": 2, "size": None, "seen": START,
            "cause": "unknown: entries were passed here that the source still has",
        },
        {
            "topic": HOSTILE, "subscription": None, "entries": 3, "markDelete": None, "messages": None, "size": -2000, "seen": START,
            "cause": "less is stored than on the source",
        },
        {
            "topic": QUOTA, "subscription": "s0", "entries": 0, "markDelete": 0, "messages": 0, "size": None, "seen": None,
            "cause": "equal to the source",
        },
        {
            "topic": QUOTA, "subscription": None, "entries": 0, "markDelete": None, "messages": None, "size": 0, "seen": None,
            "cause": "equal to the source",
        },
    ]  # fmt: skip
    assert {**found, "rows": []} == {"rows": [], "total": 4, "topics": 2, "differ": 2, "seen": START}


@pytest.mark.parametrize(
    ("order", "first"),
    [("entries", (HOSTILE, HOSTILE_SUBSCRIPTION)), ("markDelete", (HOSTILE, HOSTILE_SUBSCRIPTION)),
     ("messages", (HOSTILE, HOSTILE_SUBSCRIPTION)), ("size", (HOSTILE, None)),
     ("unseen", (QUOTA, "s0"))],
)  # fmt: skip
def test_the_order_of_a_twin(order: str, first: tuple[str, str | None]) -> None:
    row = figures.twin(snapshot(*mirrored()), "", order, 0)["rows"][0]
    assert (row["topic"], row["subscription"]) == first


def test_a_twin_is_searched_by_both_names() -> None:
    found = figures.twin(snapshot(*mirrored()), HOSTILE_SUBSCRIPTION, "drift", 0)
    assert [row["subscription"] for row in found["rows"]] == [HOSTILE_SUBSCRIPTION]
    assert (found["total"], found["topics"]) == (1, 2)
    rows = figures.twin(snapshot(*mirrored()), QUOTA, "drift", 0)["rows"]
    assert {row["topic"] for row in rows} == {QUOTA}


def test_nothing_is_mirrored(view: FolderView) -> None:
    assert answer(view, "twin") == {"rows": [], "total": 0, "topics": 0, "differ": 0, "seen": None}


@pytest.mark.parametrize("about", ["delivery", "quota", "retention", "ttl", "inactive", "deduplication"])
def test_questions_about_a_topic(view: FolderView, about: str) -> None:
    found = answer(view, "explain", about=about, topic=TTL)
    assert (found if isinstance(found, dict) else found[0])["topic"] == TTL


@pytest.mark.parametrize(
    ("path", "asked", "status", "said"),
    [
        ("topics", {"order": "name"}, 400, "order: expected storage"),
        ("twin", {"order": "name"}, 400, "order: expected drift"),
        ("topics", {"page": "200"}, 400, "page: expected a number from 0 to 199"),
        ("topics", {"page": "-1"}, 400, "page"),
        ("topics", {"search": "x" * 4097}, 400, "search: longer than"),
        (
            "topic",
            {"topic": "persistent://a/b/" + "x" * 4079},
            404,
            "there is no topic",
        ),  # no topic has a longer name
        ("topic", {"topic": "nope"}, 404, "there is no topic nope"),
        ("latest", {"kinds": "MESSAGE"}, 400, "kinds"),
        ("latest", {"most": "101"}, 400, "most"),
        ("explain", {"topic": "t", "position": "one"}, 400, "LEDGER:ENTRY"),
        ("explain", {"topic": "t", "sequence_id": "x"}, 400, "sequence_id"),
        ("explain", {"about": "quota"}, 400, "topic"),
        ("explain", {"topic": "nope", "position": "1:1"}, 404, "there is no topic nope: there are"),
        ("other", {}, 404, "no such page"),
        ("topics", {f"a{number}": "1" for number in range(30)}, 400, "fields"),
    ],
)
def test_requests_that_are_wrong(
    view: FolderView, path: str, asked: dict[str, str], status: int, said: str
) -> None:
    found, body = get(view, f"/api/{path}", **asked)
    assert (found, said in body["error"]) == (status, True), body


def test_only_reading_and_only_from_this_machine(view: FolderView) -> None:
    assert get(view, "/api/overview", method="POST")[0] == 405
    assert get(view, "/api/overview", host="evil.example")[0] == 403
    for host in ("localhost:1", "[::1]:8090", "127.0.0.1"):
        assert get(view, "/api/overview", host=host)[0] == 200


def test_the_page_is_one_file_that_runs_only_its_own_script(view: FolderView) -> None:
    headers: dict[str, str] = {}
    environ = {"PATH_INFO": "/", "REQUEST_METHOD": "GET", "HTTP_HOST": "localhost"}
    (body,) = application(view)(environ, lambda _, found: headers.update(found))
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    html = body.decode()
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    assert "innerHTML" not in html
    assert len(body) < 60_000


def test_one_explanation_at_a_time(view: FolderView, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait, and give up after a while."""
    monkeypatch.setattr(app, "SECONDS", 0.01)
    holds, goes_on = threading.Event(), threading.Event()

    def slow(_: Task) -> Any:
        holds.set()
        assert goes_on.wait(30)
        return []

    monkeypatch.setattr(app, "explain", slow)
    pages = application(view)
    statuses: list[str] = []

    def ask() -> None:
        query = urlencode({"topic": QUOTA, "position": "1:1"})
        environ = {
            "PATH_INFO": "/api/explain",
            "REQUEST_METHOD": "GET",
            "HTTP_HOST": "localhost",
            "QUERY_STRING": query,
        }
        pages(environ, lambda line, _: statuses.append(line))

    first = threading.Thread(target=ask)
    first.start()
    assert holds.wait(30)
    ask()
    goes_on.set()
    first.join(30)
    assert [each[:3] for each in statuses] == ["503", "200"]


def test_an_explanation_in_a_process_of_its_own(replayed: Path, view: FolderView) -> None:
    states = view.states(None)
    found = explain(Task(str(replayed), states, Question("policies", QUOTA), explanation.SECONDS))
    assert found == answer(view, "explain", about="policies", topic=QUOTA)
    with pytest.raises(CannotAnswer, match="there is no topic nope"):
        explain(Task(str(replayed), states, Question("quota", "nope"), explanation.SECONDS))


def test_an_explanation_that_takes_too_long_or_fails(replayed: Path, view: FolderView) -> None:
    states = view.states(None)
    with pytest.raises(CannotAnswer, match=r"longer than 0.01 s"):
        explain(Task(str(replayed), states, Question("policies"), 0.01))
    broken = [each._replace(broker=b"\1x") for each in states]
    with pytest.raises(CannotAnswer, match="ask `magnetar explain`|version"):
        explain(Task(str(replayed), broken, Question("policies"), explanation.SECONDS))


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_query_that_deletes_what_is_read(
    view: FolderView, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    tried: list[Task] = []

    def explain(task: Task) -> Any:
        tried.append(task)
        if len(tried) <= fails:
            raise Gone("entry 8:1744 is not in the store")
        return "it"

    monkeypatch.setattr(app, "explain", explain)
    asked = {"about": "delivery", "topic": TTL}
    assert get(view, "/api/explain", **asked) == (404, {"error": "entry 8:1744 is not in the store"})
    assert len(tried) == 1, "a finished replay deletes nothing"
    tried.clear()
    monkeypatch.setattr(view, "status", lambda: {"changes": True})
    status, found = get(view, "/api/explain", **asked)
    assert len(tried) == min(fails + 1, 3)
    assert (
        (status, found) == (200, "it")
        if fails < 3
        else (status, "try again" in found["error"]) == (404, True)
    )


def test_an_explanation_without_its_entries(replayed: Path, view: FolderView, tmp_path: Path) -> None:
    """The store of a replay, as retention would leave it."""
    shutil.copytree(replayed, folder := tmp_path / "replayed")
    for file in [*folder.glob("store/segments/**/*"), *folder.glob("store/ledgers/**/*")]:
        if file.is_file():
            file.unlink()
    with pytest.raises(Gone, match="is not in"):
        explain(Task(str(folder), view.states(None), Question("delivery", HOSTILE), explanation.SECONDS))


# -- the folders of a query


def test_states_are_read_again_when_the_query_goes_on(
    replayed: Path, view: FolderView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only then. What was read stays if that fails."""
    monkeypatch.setattr("streaming.ui.view._REFRESH_SECONDS", 0.0)
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
        for number in range(12):
            (tmp_path / name / str(number)).touch()
    read: list[int] = []

    def states() -> list[StateRow]:
        read.append(len(read))
        if len(read) == 3:
            raise OSError("no disk")
        return view.states(None)

    store = replayed / "store"
    found = FolderView(str(store), Folders.of(store, tmp_path), states, finished=False)
    status = answer(found, "overview")["status"]
    assert (status["kind"], status["batch"], status["changes"]) == ("query", 11, True)
    assert [each["batch"] for each in answer(found, "batches")] == [*range(12)]
    assert answer(found, "history") is None  # the store has no output rows
    assert get(found, "/api/latest")[0] == 404
    assert answer(found, "topics") == answer(view, "topics")

    def batch_is(number: int) -> bool:
        return bool(answer(found, "overview")["status"]["batch"] == number)

    assert batch_is(11)
    assert read == [0]
    (tmp_path / "commits" / "12").touch()
    wait_until(lambda: batch_is(12), "the states of micro-batch 12")
    assert read == [0, 1]
    (tmp_path / "commits" / "13").touch()
    wait_until(lambda: batch_is(13), "the states of micro-batch 13, at the second try")
    assert read == [0, 1, 2, 3]
    assert answer(found, "topics") == answer(view, "topics")


def test_a_store_without_its_checkpoint(replayed: Path) -> None:
    store = replayed / "store"
    found = FolderView(str(store), Folders.of(store), None, finished=False)
    assert answer(found, "overview")["status"]["state"] == "without states: give the --checkpoint"
    assert answer(found, "topics")["total"] == 0
    assert answer(found, "batches") == []
    assert found.history(None) is None


# -- a running query


PROGRESS = BatchProgress(7, START, 20, {"triggerExecution": 0.4, "addBatch": 0.3}, 50.0, 3, 1000, {})


def running(tmp_path: Path) -> tuple[RunView, QueryMetrics]:
    metrics = QueryMetrics()
    return RunView("kafka://h:1/t", metrics, str(tmp_path), lambda _: []), metrics


def test_a_query_from_its_start_to_its_end(tmp_path: Path) -> None:
    view, metrics = running(tmp_path)
    assert answer(view, "overview")["status"]["state"] == "starting"
    assert answer(view, "topics") == {"rows": [], "total": 0}
    assert answer(view, "latest")["rows"] == []
    metrics.known(
        [PartitionMetrics(1, "standalone", START, 4, 60_000, 9, [topic("persistent://a/b/t", 100)], [], {})]
    )
    metrics.progress(PROGRESS)
    view.progress(PROGRESS)
    status = answer(view, "overview")["status"]
    assert (status["state"], status["batch"], status["behind"], status["stateBytes"]) == ("running", 7, 3, 9)
    assert answer(view, "batches") == [
        {"batch": 7, "time": START, "seconds": 0.4, "records": 20, "phases": PROGRESS.seconds}
    ]
    assert answer(view, "history")["storage"] == [100]
    assert answer(view, "history", topic="persistent://a/b/t")["subscriptions"] == {"s0": [1]}
    assert answer(view, "topic", topic="persistent://a/b/t")["partition"] == 1
    metrics.stopped()
    assert answer(view, "overview")["status"]["state"] == "stopped"


def test_a_query_without_tables(tmp_path: Path) -> None:
    view = RunView("kafka://h:1/t", QueryMetrics(), str(tmp_path), lambda _: [], tables=False)
    status, found = get(view, "/api/latest")
    assert (status, "--no-tables" in found["error"]) == (404, True)


def test_micro_batches_in_a_ring(tmp_path: Path) -> None:
    view, _ = running(tmp_path)
    for number in range(POINTS + 5):
        view.progress(PROGRESS._replace(batch_id=number))
    found = answer(view, "batches")
    assert (len(found), found[0]["batch"], found[-1]["batch"]) == (POINTS, 5, POINTS + 4)


# -- history


def test_history_does_not_grow() -> None:
    """Neither with topics nor with their subscriptions nor with time."""
    found = SampleHistory()
    for number in range(POINTS + 20):
        # Others are the largest each time.
        topics = [
            topic(f"t{number * 7 + each}", 100 + each, range(SUBSCRIPTIONS + 3)) for each in range(SERIES * 2)
        ]
        found.add(number * EVERY_MS, snapshot(*topics), figures.totals(snapshot(*topics)))
        assert len(found) <= SERIES
        if number > 40:
            break
    assert len(found) <= SERIES
    assert len(found.totals()["times"]) == 42


def test_the_oldest_samples_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "POINTS", 4)
    found = SampleHistory()
    for number in range(6):
        now = snapshot(topic("t", number))
        found.add(number * EVERY_MS, now, figures.totals(now))
    assert found.totals()["storage"] == [2, 3, 4, 5]
    assert (samples := found.topic("t")) is not None
    assert samples["times"] == [each * EVERY_MS for each in range(2, 6)]
    # A topic that is gone is forgotten with its last sample.
    for number in range(6, 9):
        found.add(number * EVERY_MS, snapshot(), figures.totals(snapshot()))
    assert (samples := found.topic("t")) is not None
    assert samples["storage"] == [5, None, None, None]
    found.add(9 * EVERY_MS, snapshot(), figures.totals(snapshot()))
    found.add(10 * EVERY_MS, snapshot(), figures.totals(snapshot()))
    assert found.topic("t") is None


def test_samples_are_not_taken_more_often() -> None:
    found = SampleHistory()
    assert found.is_due(5)
    found.add(5, snapshot(), figures.totals(snapshot()))
    assert not found.is_due(5 + EVERY_MS - 1)
    assert found.is_due(5 + EVERY_MS)


# -- figures


def test_pages_in_order() -> None:
    many = snapshot(*(topic(f"t{number:03}", number) for number in range(120)))
    first, last = figures.topics(many, "", "storage", 0), figures.topics(many, "", "storage", 2)
    assert [row["topic"] for row in first["rows"]][:2] == ["t119", "t118"]
    assert [row["topic"] for row in last["rows"]] == [f"t{number:03}" for number in range(19, -1, -1)]
    assert figures.topics(many, "t11", "backlog", 0)["total"] == 10


def test_totals_have_rates_of_the_current_interval_alone() -> None:
    now = figures.totals(snapshot(topic("t", 1, (2, 3)), time=0))
    assert (now.backlog, now.subscriptions, now.rateIn) == (5, 2, 0.0)
    late = topic("t", 1)
    late.rates_until = 1000
    assert figures.totals(snapshot(late, time=999)).rateIn == 2.0


def test_quotas_by_how_much_is_used() -> None:
    found = figures.quotas(
        snapshot(topic("a", 100, quota=100), topic("b", 100, quota=60), topic("c", 100)), 10
    )
    assert [(row["topic"], row["ratio"]) for row in found] == [("b", 50 / 60), ("a", 0.5)]


# -- the endpoint


def test_an_address_of_other_machines_is_refused() -> None:
    with pytest.raises(EndpointError, match=r"--ui 0.0.0.0:0: other machines reach this address.*--insecure"):
        Endpoint("0.0.0.0:0", option="--ui", only_loopback=True)
    Endpoint("0.0.0.0:0", option="--ui").close()
