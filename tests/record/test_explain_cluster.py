"""`magnetar explain` about a live cluster and about what people paste: each answer on situations that clients made, and bad input."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from streaming.answers.explain.stats.answers import Answers, Questions, answer
from streaming.answers.explain.stats.observed import Observed, ShownFields
from streaming.answers.history.folders import NotFound
from streaming.broker.persistent.delivery import Delivery
from streaming.broker.topic.producing import Producing
from streaming.cli.app import app
from streaming.cli.explained import answers_lines, headline, producers_headline
from streaming.mirror.observation import observe as mirrored
from streaming.record.observe import observe
from streaming.record.rest import CallFailed, Rest, Said
from streaming.server.authentication import TokenAuthentication
from streaming.server.server import Security
from tests.parity.pulsar import LocalPulsar
from tests.record.kit import of_batches
from tests.record.recorded_clusters import VERSIONS, Recorded
from tests.record.situations import SETTINGS, SITUATIONS, Scene, path, scene_of, topic_of
from tests.server.conftest import running
from tests.server.test_authentication import secret, token

pytestmark = pytest.mark.feature("K3")

MAGNETAR, REAL = "magnetar", "real"
NOW = 1_800_000_000_000


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    settings: dict[str, Any] = {
        **SETTINGS,
        "statsUpdateFrequencyInSecs": 3600,
    }  # no interval with a rate ends meanwhile
    with (
        running(**settings) as broker,
        scene_of(broker.service_url, Rest(str(broker.server.admin_url))) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def real_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with (
        LocalPulsar(tmp_path_factory.mktemp("pulsar"), SETTINGS) as real,
        scene_of(
            f"pulsar://127.0.0.1:{real.ports.broker}", Rest(f"http://127.0.0.1:{real.ports.admin}")
        ) as found,
    ):
        yield found


@pytest.fixture(params=[MAGNETAR, *VERSIONS, pytest.param(REAL, marks=pytest.mark.slow)])
def rest(request: pytest.FixtureRequest) -> Rest:
    """The admin API of Magnetar's server, or that of a real Pulsar, as it was recorded or live."""
    if request.param in (MAGNETAR, REAL):
        scene: Scene = request.getfixturevalue("scene" if request.param == MAGNETAR else "real_scene")
        return scene.rest
    return Recorded(request.param)


def ask(rest: Rest, situation: str, oldest: bool = False, **asked: Any) -> Answers:
    now = rest.now if isinstance(rest, Recorded) else NOW
    name, observed, partitions = observe(rest, topic_of(situation), now, oldest=oldest)
    return answer(name, observed, Questions(**asked), partitions)


def subscription(rest: Rest, situation: str, name: str = "s") -> Delivery:
    (one,) = ask(rest, situation, subscription=name).subscriptions
    assert one.to_do or one.state == "caught up", "each answer says what to do"
    return one


def blocking(found: Delivery | Producing) -> list[tuple[str, str | None]]:
    return [(each.decider, each.consumer) for each in found.verdicts if each.blocks]


@pytest.mark.parametrize("version", VERSIONS)
def test_positions_may_tell_of_a_batch(version: str) -> None:
    """Nobody reads another position, nor fails: neither this command nor the mirror."""
    plain = Recorded(version)
    told = of_batches(plain)
    for situation in SITUATIONS:
        assert ask(told, situation) == ask(plain, situation)
    topics = {each.partition("/stats?")[0]: each for each in plain.said if "/stats?" in each}
    for topic, shown in topics.items():
        stats, internal = plain.get(shown), f"{topic}/internalStats"
        assert mirrored(0, stats, told.get(internal)) == mirrored(0, stats, plain.get(internal))
    assert len(topics) > 20


# -- why a subscription gets nothing


@pytest.mark.parametrize(
    ("situation", "state", "reasons", "counts"),
    [
        ("no_consumer", "no consumers", [("consumers", None)], (3, 0, 3)),
        ("caught_up", "caught up", [("backlog", None)], (0, 0, 0)),
        ("no_permits", "held back", [("permits", "app-1")], (4, 1, 3)),
        ("in_flight", "in flight", [], (3, 3, 0)),
        (
            "active_without_permits",
            "held back",
            [("permits", "app-1"), ("active consumer", "app-2")],
            (4, 1, 3),
        ),
        ("delayed_only", "waiting for a time", [], (3, 0, 0)),
        ("hole", "in flight", [], (1, 1, 0)),
    ],
)
def test_why_a_subscription_gets_nothing(
    rest: Rest,
    situation: str,
    state: str,
    reasons: list[tuple[str, str | None]],
    counts: tuple[int, int, int],
) -> None:
    found = subscription(rest, situation)
    assert (found.state, blocking(found)) == (state, reasons)
    assert (found.backlog, found.in_flight, found.unread) == counts


def test_limits_on_unacked_messages_and_where_they_come_from(rest: Rest) -> None:
    """A real broker may have read on before the limit took effect."""
    of_consumer, of_subscription = (
        subscription(rest, f"unacked_of_{each}") for each in ("consumer", "subscription")
    )
    assert ("maxUnackedMessagesPerConsumer", "app-1") in blocking(of_consumer)
    assert ("maxUnackedMessagesPerSubscription", None) in blocking(of_subscription)
    assert (of_consumer.state, of_subscription.state) == ("held back", "held back")
    assert " unacked messages, the limit is 2; " in reason(of_consumer, "maxUnackedMessagesPerConsumer")
    assert reason(of_subscription, "maxUnackedMessagesPerSubscription").endswith(
        "the limit is 2; new entries wait until there are fewer than 1"
    )


def reason(found: Delivery, decider: str) -> str:
    (text,) = [each.text for each in found.verdicts if each.blocks and each.decider == decider]
    return text


def test_a_hole_holds_the_mark_delete_position(rest: Rest) -> None:
    found = subscription(rest, "hole")
    first = found.first[0].position
    (hole,) = [each for each in found.verdicts if each.decider == "ack holes"]
    assert hole.text == (
        f"1 range of entries is acked above the mark-delete position {found.mark_delete}, which stays there until {first} is acked"
    )
    ledger, _, entry = first.partition(":")
    assert f"get-message-by-id -l {ledger} -e {entry} {topic_of('hole')}" in found.to_do[-1]


def test_what_stats_do_not_show_is_not_guessed(rest: Rest) -> None:
    """They show that a rate was used up, not whether it is now."""
    found = subscription(rest, "dispatch_rate")
    assert found.state == "not triggered"
    (rate,) = [each for each in found.verdicts if each.decider == "dispatchRate"]
    assert (rate.blocks, rate.sure) == (False, False)
    assert rate.text.startswith("1 messages in 3600 s, topic (subscriptionDispatchRate)")
    assert headline(found) == "not triggered, perhaps held back by dispatchRate"


def test_a_key_that_another_consumer_holds(request: pytest.FixtureRequest, rest: Rest) -> None:
    """4.0 shows the hashes that drain, 2.10 and 3.0 the consumer that joined."""
    found = subscription(rest, "key_held")
    version = request.node.callspec.params["rest"]
    if version in ("2.10.5", "3.0.7"):
        assert ("recently joined", "app-2") in blocking(found), found
    elif version == MAGNETAR:
        assert headline(found) == "not triggered, perhaps held back by replay queue"
        assert any("key hashes" in each for each in found.unknown)
    else:
        assert ("draining hash", "app-2") in blocking(found), found
        assert found.state == "held back"
        (drain,) = [each for each in found.verdicts if each.decider == "draining hash"]
        assert "until app-1 has acked" in drain.text


def test_a_terminated_topic(rest: Rest) -> None:
    found = ask(rest, "terminated_at_its_end")
    (one,) = found.subscriptions
    assert headline(one) == "caught up, and the topic is terminated"
    assert "terminated" in dict(blocking(one))
    (producing,) = found.producers
    assert {(each.answer, each.error) for each in producing.admissions} == {
        ("is refused", "TopicTerminatedError")
    }


def test_partitions_with_trouble_come_first(rest: Rest) -> None:
    found = ask(rest, "partitions")
    assert found.partitions == 3
    assert [(each.topic[-1], each.subscription, each.state) for each in found.subscriptions[:2]] == [
        ("1", "stuck", "no consumers"), ("1", "s", "in flight"),
    ]  # fmt: skip
    assert {each.state for each in found.subscriptions[2:]} == {"caught up"}
    assert next(answers_lines(found)).endswith("may need you: 1 no consumers, 1 in flight")


# -- storage, quotas


def test_which_subscription_holds_which_ledger(rest: Rest) -> None:
    (found,) = ask(rest, "ledgers_kept", retention=True).retention
    reasons = [each.reason for each in found.ledgers]
    assert reasons[-2:] == ["cursor", "open"]
    held = found.ledgers[-2]
    assert held.cursors == ["slow"]
    assert held.text.startswith("still needed by slow (mark-delete position ")
    assert (found.minutes, found.megabytes, found.level) == (0, 0, "broker")
    assert "unsubscribe -s slow" in found.to_do[0]
    for each in found.ledgers[:-2]:  # a version may not have trimmed what is consumed
        assert each.reason == "not checked yet"


def test_retention_keeps_what_is_consumed(rest: Rest) -> None:
    (found,) = ask(rest, "retained", retention=True).retention
    assert (found.minutes, found.megabytes, found.level) == (120, 500, "topic")
    assert [each.reason for each in found.ledgers] == [
        "retention",
        *["older ledger"] * (len(found.ledgers) - 2),
        "open",
    ]
    assert any("when ledgers were closed" in each for each in found.unknown)


def test_whose_quota_blocks_producers(rest: Rest) -> None:
    found = ask(rest, "quota_blocks", oldest=True, quota=True, producers=True)
    (quotas,), (producing,) = found.quotas, found.producers
    size = quotas.quotas[0]
    assert (size.state, size.policy, size.level, size.limit) == (
        "exceeded",
        "producer_exception",
        "topic",
        100,
    )
    assert size.used is not None
    assert size.used > 400
    assert (quotas.slowest, quotas.backlogs[0].subscription) == ("slow", "slow")
    assert "unsubscribe -s slow" in quotas.to_do[0]
    if isinstance(rest, Recorded):
        oldest = quotas.backlogs[0].oldest
        assert oldest is not None
        assert 0 < rest.now - oldest < 600_000
    assert blocking(producing) == [("backlogQuota", None)]
    assert {(each.answer, each.error) for each in producing.admissions} == {
        ("is refused", "ProducerBlockedQuotaExceededException")
    }
    assert "the slowest subscription is slow" in producing.verdicts[0].text


def test_a_quota_that_holds_producers(rest: Rest) -> None:
    found = ask(rest, "quota_holds")
    (quotas,), (producing,) = found.quotas, found.producers
    assert (quotas.quotas[0].state, quotas.quotas[0].policy) == ("exceeded", "producer_request_hold")
    assert (producing.producers, producing.slowest) == ([], "slow")
    assert blocking(producing) == [("backlogQuota", None)]
    assert producing.verdicts[0].text.endswith(
        "; the slowest subscription is slow; clients hold their producers' messages and ask again until these time out"
    )
    assert {(each.answer, each.error) for each in producing.admissions} == {
        ("is refused", "ProducerBlockedQuotaExceededError")
    }
    assert "unsubscribe -s slow" in producing.to_do[0]
    assert any("who is refused or held" in each for each in producing.unknown)


AGELESS = ("2.10.5",)
"""The versions whose stats have no age of the last check: it is told only if the oldest messages are asked for."""


def version_of(request: pytest.FixtureRequest) -> str:
    version: str = request.node.callspec.params["rest"]
    return version


def test_a_quota_of_age_that_holds_producers(request: pytest.FixtureRequest, rest: Rest) -> None:
    """The age is that of the last check, so that it is not sure."""
    found = ask(rest, "age_blocks", oldest=True, quota=True, producers=True)
    (quotas,), (producing,) = found.quotas, found.producers
    size, age = quotas.quotas
    assert (size.state, age.state, age.policy, age.level, age.limit) == (
        "no limit", "exceeded", "producer_request_hold", "topic", 1000,
    )  # fmt: skip
    assert (quotas.slowest, quotas.backlogs[0].subscription) == ("slow", "slow")
    assert producers_headline(producing).startswith(
        "perhaps held: the message_age quota is exceeded (producer_request_hold, topic): used "
    )
    assert producers_headline(producing).endswith(", as of the last check")
    assert {(each.answer, each.text) for each in producing.admissions} == {
        ("not known", "refused with ProducerBlockedQuotaExceededError if the quota is still exceeded")
    }
    assert "unsubscribe -s slow" in producing.to_do[0]
    (unasked,) = ask(rest, "age_blocks", producers=True).producers
    if version_of(request) in AGELESS:
        assert "whether the message_age quota was exceeded since the last check" in unasked.unknown
    else:
        assert blocked_perhaps(unasked) == ["backlogQuota"]


def blocked_perhaps(found: Producing) -> list[str]:
    return [each.decider for each in found.verdicts if not each.sure]


def test_a_quota_of_age_that_evicts(rest: Rest) -> None:
    """It has evicted a ledger, and the open one stays, however old it is. Producers go on."""
    found = ask(rest, "age_evicts", oldest=True, quota=True, producers=True)
    (quotas,), (producing,) = found.quotas, found.producers
    age = quotas.quotas[1]
    assert (age.policy, age.evicts) == ("consumer_backlog_eviction", False)
    assert (age.state, age.text.partition(":")[0]) in (
        ("exceeded", "there is nothing to evict"),
        ("within its limit", "the last check knew no age"),
    )
    assert "ledger" in age.text
    assert quotas.backlogs[0].entries == 1
    assert any(each.startswith("what a quota has evicted: the stats don't tell") for each in quotas.unknown)
    assert (blocking(producing), blocked_perhaps(producing)) == ([], [])
    assert [each.name for each in producing.producers] == ["first"]
    assert {each.answer for each in producing.admissions} >= {"gets in"}


# -- producers


def test_a_topic_with_as_many_producers_as_it_may_have(rest: Rest) -> None:
    (found,) = ask(rest, "max_producers").producers
    assert [(each.decider, each.text) for each in found.verdicts if each.blocks] == [
        ("maxProducersPerTopic", "1 producers, the limit is 1")
    ]
    assert [each.name for each in found.producers] == ["first"]
    assert {(each.answer, each.error) for each in found.admissions} == {("is refused", "ProducerBusy")}
    assert "set-max-producers" in found.to_do[0]


def test_a_producer_that_was_fenced_out(request: pytest.FixtureRequest, rest: Rest) -> None:
    """The stats show who has the access now, and by its epoch that somebody lost it."""
    (found,) = ask(rest, "fenced_out", producers=True).producers
    (producer,) = found.producers
    access = [each.text for each in found.verdicts if each.blocks]
    if version_of(request) == "2.10.5":  # it does not know ExclusiveWithFencing
        assert (producer.name, producer.access_mode, found.epoch) == ("first", "Exclusive", 0)
        assert access == ["first has exclusive access"]
    else:
        assert (producer.name, producer.access_mode, found.epoch) == ("second", "ExclusiveWithFencing", 1)
        assert access == [
            "second has exclusive access (topic epoch 1: who had it under an earlier one is fenced out)"
        ]
    assert found.owner == producer.name
    assert ("Exclusive", "is refused", "ProducerFenced") in [
        (each.access_mode, each.answer, each.error) for each in found.admissions
    ]
    assert any("who was fenced out" in each for each in found.unknown)


def test_a_publish_rate_that_slows_a_producer(request: pytest.FixtureRequest, rest: Rest) -> None:
    (found,) = ask(rest, "publish_rate").producers
    (rate,) = [each for each in found.verdicts if each.decider == "publishRate"]
    assert (rate.blocks, rate.sure) == (False, False)
    assert re.fullmatch(
        r"publishing was throttled \d+ times in the last interval of the stats; the limit is 10 messages/s \(topic\)",
        rate.text,
    )
    assert producers_headline(found).startswith("perhaps held: publishing was throttled ")
    assert "raise the publish rate" in found.to_do[0]
    assert {each.answer for each in found.admissions if each.access_mode == "Shared"} == {"gets in"}


def test_who_has_exclusive_access_and_how_many_wait(request: pytest.FixtureRequest, rest: Rest) -> None:
    (found,) = ask(rest, "exclusive_and_waiting", producers=True).producers
    assert (found.owner, found.waiting) == ("first", 1)
    assert [each.text for each in found.verdicts if each.blocks] == [
        "first has exclusive access, and 1 waits for it"
    ]
    fencing = "not known" if version_of(request) == "2.10.5" else "fences"
    assert [(each.access_mode, each.answer, each.error) for each in found.admissions] == [
        ("Shared", "is refused", "ProducerBusy"), ("Exclusive", "is refused", "ProducerFenced"),
        ("WaitForExclusive", "waits", None), ("ExclusiveWithFencing", fencing, None),
    ]  # fmt: skip
    assert any(each.startswith("who waits") for each in found.unknown)


def test_without_a_question_only_trouble_is_told(rest: Rest) -> None:
    assert [each.owner for each in ask(rest, "exclusive_and_waiting").producers] == ["first"]
    quiet = ask(rest, "caught_up")
    assert (quiet.quotas, quiet.producers, quiet.retention) == ([], [], [])
    trouble = ask(rest, "quota_blocks")
    assert [each.quotas[0].state for each in trouble.quotas] == ["exceeded"]


def test_the_summary_begins_with_what_keeps_producers_out(rest: Rest) -> None:
    first = next(answers_lines(ask(rest, "quota_blocks")))
    assert first.startswith(
        f"{topic_of('quota_blocks')}: producers: the destination_storage quota is exceeded (producer_exception, topic): used "
    )
    assert first.endswith("; 2 of 2 subscriptions may need you: 2 no consumers")


# -- the command


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["explain", *map(str, arguments)])
    assert "Traceback" not in done.output
    return done.exit_code, done.output


def test_the_first_line_is_the_answer_and_then_comes_what_to_do(scene: Scene) -> None:
    code, text = run("--admin-url", scene.rest.url, "no-permits", "--subscription", "s")
    assert code == 0
    lines = text.splitlines()
    assert (
        lines[0]
        == "persistent://public/default/no-permits, subscription s (Shared): held back by permits (app-1)"
    )
    assert any(
        each.startswith("  To do: See whether the application of app-1 still receives") for each in lines
    )
    assert any(each.startswith("  app-1 is at 127.0.0.1:") for each in lines)
    code, text = run("--admin-url", scene.rest.url, "no-permits", "--json")
    assert code == 0
    assert json.loads(text)["subscriptions"][0]["state"] == "held back"


def test_the_questions_about_a_topic(scene: Scene) -> None:
    code, text = run("--admin-url", scene.rest.url, "quota-blocks", "--quota", "--retention", "--producers")
    assert code == 0
    assert text.startswith(
        "persistent://public/default/quota-blocks, producers: the destination_storage quota is exceeded (producer_exception, topic): "
    )
    assert "quota-blocks, backlog quotas: destination_storage exceeded\n" in text
    assert "quota-blocks, 1 ledger of 516 bytes: 1 open\n" in text
    assert (
        "quota-blocks, producers: the destination_storage quota is exceeded (producer_exception, topic): used 516"
        in text
    )
    assert "    any  is refused with ProducerBlockedQuotaExceededException: " in text


@pytest.mark.parametrize(
    ("topic", "options", "complaint"),
    [
        (
            "no-permitz",
            [],
            "there is no topic persistent://public/default/no-permitz: there are persistent://public/default/no-permits, ",
        ),
        ("a/b/c", [], "there is no topic persistent://a/b/c"),
        (
            "no-permits",
            ["--subscription", "z"],
            "persistent://public/default/no-permits has no subscription z: there is s",
        ),
        (
            "non-persistent://public/default/n",
            [],
            "is not persistent: it keeps neither messages nor backlogs",
        ),
        ("no-permits", ["--at", "3"], "--at applies to a log, a replay or a query"),
        ("no-permits", ["x"], "a cluster keeps no history, so it has no DIR"),
        ("no-permits", ["--stats", "s.json"], "give --admin-url or --stats, not both"),
        (
            "no-permits",
            ["--quota", "--subscription", "s"],
            "apply to a topic: omit the message and the subscription",
        ),
        ("no-permits", ["--producer", "p", "--sequence-id", "3"], "applies to a log, a replay or a query"),
    ],
)
def test_what_is_not_there(scene: Scene, topic: str, options: list[str], complaint: str) -> None:
    code, text = run("--admin-url", scene.rest.url, topic, *options)
    assert (code, complaint in text) == (2, True), text


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "give DIR (a replay's folder, a query's store or a command log), or --admin-url URL TOPIC"),
        (["http://127.0.0.1:1", "t"], "give the URL of its admin API as --admin-url"),
        (["--admin-url", "http://127.0.0.1:1"], "give the topic: magnetar explain --admin-url URL TOPIC"),
        (["--admin-url", "localhost:8080", "t"], "'localhost:8080': expected http://HOST:PORT"),
        (["log.jsonl", "--policies", "p.json"], "--internal-stats and --policies add to --stats"),
        (["log.jsonl", "--token-file", "t"], "--token-file and --tls-ca apply to --admin-url"),
        (["--stats", "nothing.json"], "nothing.json: No such file or directory"),
    ],
)
def test_options_that_do_not_fit(options: list[str], complaint: str) -> None:
    code, text = run(*options)
    assert (code, complaint in text) == (2, True), text


def test_nobody_is_there() -> None:
    code, text = run("--admin-url", "http://127.0.0.1:1", "t")
    assert (code, "http://127.0.0.1:1 can't be reached: " in text) == (1, True), text


# -- what a cluster answers that is not as it should be


@contextmanager
def admin(answers: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """An admin API that answers GETs by their paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "code", "complaint"),
    [
        (
            401,
            b"<html>",
            1,
            "401: the cluster refuses it: give a token that may read the topic's stats with --token-file",
        ),
        (403, b'{"reason": "no"}', 1, "403: the cluster refuses it"),
        (
            404,
            b'{"reason": "Namespace not found"}',
            2,
            "there is no topic persistent://public/default/t: Namespace not found",
        ),
        (404, b"<html>Not Found</html>", 1, "with 404 and no JSON: is it the admin API?"),
        (
            200,
            b"<html>Welcome to nginx</html>",
            1,
            "with 200 and no JSON: is it the admin API? Give the URL of a broker",
        ),
        (200, b'{"partitions": ', 1, "with 200 and no JSON"),
        (200, b'{"partitions": "\xff"}', 1, "with 200 and no JSON"),
        (500, b'{"reason": "an error"}', 1, "/partitions: 500 an error"),
        (503, b"<html>", 1, "/partitions: 503, and no reason"),
        (200, b"[]", 1, "and no JSON"),
    ],
)
def test_responses_that_are_no_answer(status: int, body: bytes, code: int, complaint: str) -> None:
    with admin(lambda path: (status, body)) as url:
        found, text = run("--admin-url", url, "t")
    assert (found, complaint in text) == (code, True), text


def test_a_response_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.record.rest._MOST_BYTES", 1 << 20)
    with (
        admin(lambda path: (200, b"[" + b"1," * (1 << 21))) as url,
        pytest.raises(CallFailed, match="more than 1 MiB"),
    ):
        Rest(url).call("GET", "/persistent/public/default/t/partitions")


class Denying(Rest):
    """The admin API of a broker, some of whose GETs a token may not do."""

    def __init__(self, rest: Rest, denied: tuple[str, ...], status: int = 403) -> None:
        super().__init__(rest.url)
        self._denied, self._status = denied, status
        self.asked: list[str] = []

    def call(self, method: str, path: str, body: Any = None) -> Said:
        self.asked.append(path)
        if any(each in path for each in self._denied):
            return Said(self._status, None)
        return super().call(method, path, body)


@pytest.mark.parametrize(
    "shown",
    [None, [], {}, {"other-partition-0": {}}, {"t": {}}, {"persistent://public/default/t-partition-3": {}}],
)
def test_stats_of_none_of_the_partitions(shown: Any) -> None:
    """Whatever else the cluster shows in their place."""

    def answered(path: str) -> tuple[int, bytes]:
        return 200, json.dumps({"partitions": 3 if path.endswith("/partitions") else shown}).encode()

    with admin(answered) as url:
        code, text = run("--admin-url", url, "t")
    said = "persistent://public/default/t has 3 partitions, and the cluster shows no stats of any of them"
    assert (code, said in text) == (1, True), text


def test_what_a_token_may_not_read_is_named_once_and_left_out(scene: Scene) -> None:
    denied = ("/brokers/", "/namespaces/", "internalStats", "maxUnacked", "retention", "backlogQuota")
    for situation in ("no_permits", "partitions"):
        found = ask(Denying(scene.rest, denied), situation)
        assert found.missing == [
            "the internal stats: 403: the token may not read them", "the broker's settings: 403: the token may not read them",
            "the policies of the namespace: 403: the token may not read them",
            "the policies of the topic: 403: the token may not read them",
        ]  # fmt: skip
    one = ask(Denying(scene.rest, denied), "no_permits").subscriptions[0]
    assert blocking(one) == [("permits", "app-1")]
    assert one.state == "held back"
    limits = [each.text for each in one.verdicts if each.decider.startswith("maxUnacked")]
    assert limits == ["1 unacked messages, the limit is not known"] * 2
    assert one.unread is None
    lines = [*answers_lines(ask(Denying(scene.rest, denied), "no_permits"))]
    assert lines[-1] == "Not known: the policies of the topic: 403: the token may not read them"


def test_without_policies_a_quota_is_not_known(scene: Scene) -> None:
    found = ask(
        Denying(scene.rest, ("backlogQuotaMap",)), "quota_blocks", quota=True, producers=True, retention=True
    )
    size = found.quotas[0].quotas[0]
    assert (size.policy, size.level) == ("not known", "not known")
    assert size.state == "exceeded"
    assert "that takes the policies" in size.text
    assert blocking(found.producers[0]) == []


def test_it_only_reads(scene: Scene) -> None:
    """No call but GETs, and no topic comes into being."""
    before = scene.rest.get("/persistent/public/default", list[str])
    for name in ("nothing", "nothing-partition-3"):
        with pytest.raises(NotFound):
            observe(scene.rest, name, NOW)
    assert scene.rest.get("/persistent/public/default", list[str]) == before


def test_a_topic_with_ten_thousand_subscriptions(scene: Scene) -> None:
    """What is printed has a bound, and the oldest message of each is not asked for."""
    stats = scene.stats(topic_of("no_permits"))
    stats["subscriptions"] = {f"s{n}": stats["subscriptions"]["s"] for n in range(10_000)}
    consumers = stats["subscriptions"]["s0"]["consumers"] * 5000
    stats["subscriptions"]["s0"] = stats["subscriptions"]["s0"] | {"consumers": consumers}
    asked: list[str] = []

    def answers(target: str) -> tuple[int, bytes]:
        asked.append(target)
        if target.partition("?")[0].endswith("/stats"):
            return 200, json.dumps(stats).encode()
        return (200, b'{"partitions": 0}') if target.endswith("/partitions") else (403, b"{}")

    with admin(answers) as url:
        code, text = run("--admin-url", url, "t")
        assert code == 0
        assert len(text.splitlines()) < 400
        assert text.startswith(
            "persistent://public/default/t: 10,000 of 10,000 subscriptions may need you: 9,999 held back, 1 in flight\n"
        )
        assert (
            "and 9,970 more (9,969 held back, 1 in flight): --subscription shows one of them, --json all"
            in text
        )
        code, text = run("--admin-url", url, "t", "--subscription", "s0")
        assert code == 0
        assert len(text.splitlines()) < 80
    assert not [each for each in asked if "getEarliestTimeInBacklog" in each]


def test_hostile_names_do_not_reach_the_terminal(scene: Scene) -> None:
    stats = scene.stats(topic_of("no_permits"))
    shown = stats["subscriptions"]["s"]
    shown["consumers"][0]["consumerName"] = "a\x1b[2Jb\nc"
    stats["subscriptions"] = {"x\x1b]0;y\x07; rm -rf /": shown}
    with admin(
        lambda path: (
            200,
            b'{"partitions": 0}' if path.endswith("partitions") else json.dumps(stats).encode(),
        )
    ) as url:
        code, text = run("--admin-url", url, "t")
    assert code == 0
    assert not {"\x1b", "\x07"} & set(text)


# -- what people paste


def pasted(scene: Scene, tmp_path: Path, situation: str) -> list[object]:
    topic = topic_of(situation)
    options: list[object] = []
    for option, value in (
        ("--stats", scene.stats(topic)),
        ("--internal-stats", scene.stats(topic, "internalStats")),
        ("--policies", scene.rest.get("/namespaces/public/default")),
    ):
        file = tmp_path / f"{option.strip('-')}.json"
        file.write_text(json.dumps(value))
        options += [option, file]
    return options


def test_files_give_the_same_answers(scene: Scene, tmp_path: Path) -> None:
    code, text = run(*pasted(scene, tmp_path, "no_permits"), "public/default/no-permits")
    assert code == 0
    answer = text.splitlines()[1]  # after what is used of the policies
    assert answer == "public/default/no-permits, subscription s (Shared): held back by permits (app-1)"
    assert "backlog 4 entries: 1 in flight, 0 to redeliver, 0 delayed, 3 not read yet" in text
    assert "Not known: the broker's settings: give --policies (broker.conf" in text
    options = pasted(scene, tmp_path, "no_permits")
    code, text = run(*options[:2])
    assert code == 0
    assert text.startswith("the topic, subscription s (Shared): held back by permits (app-1)\n")
    assert "Not known: the internal stats: give --internal-stats" in text
    assert "that takes the internal stats" in text


@pytest.mark.parametrize("situation", ["key_held", "hole", "quota_blocks", "exclusive_and_waiting"])
def test_fields_that_are_missing_or_odd_are_tolerated(situation: str) -> None:
    """Whatever a field is replaced with, there is an answer."""
    rest = Recorded("4.0.7")
    name, (seen,), _ = observe(rest, topic_of(situation), rest.now)
    whole = [
        rest.get(f"{path(name)}/{call}")
        for call in ("stats?getPreciseBacklog=true&subscriptionBacklogSize=true", "internalStats")
    ]
    questions = Questions(), Questions(quota=True, retention=True, producers=True)
    for at, one in enumerate(whole):
        for changed in broken(one):
            stats, internal = (ShownFields(changed if n == at else each) for n, each in enumerate(whole))
            odd = Observed(name, seen.clock, stats, internal, seen.own, seen.namespace, seen.config)
            for asked in questions:
                assert [*answers_lines(answer(name, [odd], asked))]


def broken(value: Any) -> Iterator[Any]:
    """A JSON object without one of its fields, or with another value there; in the objects in it, too."""
    for name, inner in value.items():
        rest = {each: other for each, other in value.items() if each != name}
        yield rest
        values: list[Any] = [None, "x", -1, [], {}, [3]]
        for odd in values:
            yield rest | {name: odd}
        if isinstance(inner, dict) and name in ("subscriptions", "cursors", "s"):
            for changed in broken(inner):
                yield rest | {name: changed}
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
            for changed in broken(inner[0]):
                yield rest | {name: [changed, *inner[1:]]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 100_000, "nests too deeply"),
        ("", "is empty: expected JSON"),
        ('{"subscriptions": {"s": {', "is not JSON: it is cut off"),
        ("<html>", "is not JSON: it looks like HTML"),
        ("Topic not found", "is not JSON: "),
        ("[1]", "expected a JSON object, and this is list"),
        ("{}", "it has neither subscriptions nor partitions"),
        ('{"cursors": {}}', "and this is internal stats"),
        ("\udcff", "is not JSON"),
        ('{"subscriptions": null}', "Expected `object`"),
        ('{"subscriptions": {"s": null}}', "Expected `object`"),
        ('{"subscriptions": {"s": {"consumers": []}}}', "missing required field `msgBacklog`"),
        ('{"subscriptions": {"s": {"msgBacklog": 1, "consumers": null}}}', "Expected `array`"),
        ('{"partitions": {"t-partition-0": {}}}', "missing required field `subscriptions`"),
    ],
)
def test_files_that_are_no_stats(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "stats.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    code, said = run("--stats", file)
    assert (code, complaint in said) == (2, True), said


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_that_windows_wrote(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "stats.json"
    file.write_text('{"subscriptions": {"s": {"msgBacklog": 1, "consumers": []}}}', encoding=encoding)
    policies = tmp_path / "policies.json"
    policies.write_text('{"bundles": {"numBundles": 4}}', encoding=encoding)
    code, said = run("--stats", file, "--policies", policies)
    assert (code, "subscription s" in said) == (0, True), said


@pytest.mark.parametrize("text", ["{}", '{"subscriptions": {}}'])
def test_files_that_are_no_policies(scene: Scene, text: str, tmp_path: Path) -> None:
    options = pasted(scene, tmp_path, "no_permits")
    Path(str(options[-1])).write_text(text)
    code, said = run(*options)
    assert (code, "expected the settings of a broker, the policies of a namespace or of a topic" in said) == (
        2,
        True,
    ), said


def test_the_policies_of_another_namespace_are_refused(scene: Scene, tmp_path: Path) -> None:
    *options, policies = pasted(scene, tmp_path, "no_permits")
    code, said = run(*options, f"shop/day={policies}", "orders")
    assert (code, "says nothing of persistent://public/default/orders" in said) == (2, True), said


SHOWN: dict[str, Any] = {
    "bundles": {"numBundles": 4}, "max_producers_per_topic": 7,
    "backlog_quota_map": {"message_age": {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}},
}  # fmt: skip
CONF = (
    "backlogQuotaDefaultLimitBytes={limit}\nbacklogQuotaDefaultRetentionPolicy=producer_exception\ndefaultRetentionTimeInMinutes=9\n"
    "defaultRetentionSizeInMB=8\nmaxPublishRatePerTopicInMessages=5\nmanagedLedgerPassword=x\n"
)


@pytest.mark.parametrize("form", ["broker.conf", "runtime.json", "policies.yaml", "log.jsonl"])
def test_the_defaults_of_the_broker_are_told_by_any_file_that_has_them(
    form: str, scene: Scene, tmp_path: Path
) -> None:
    """One translation reads them, that of `magnetar replay --policies`."""
    *options, _ = pasted(scene, tmp_path, "quota_blocks")
    settings = dict(line.split("=") for line in CONF.format(limit=300).splitlines())
    path = "/namespaces/public/default"
    commands: list[dict[str, Any]] = [
        {"timestamp": 0, "command": "BROKER_CONFIG", "settings": settings},
        {"timestamp": 0, "command": "ADMIN", "method": "PUT", "path": path, "body": SHOWN},
    ]
    (tmp_path / "namespace.json").write_text(json.dumps(SHOWN))
    (tmp_path / "topic.json").write_text('{"maxProducerPerTopic": 3}')
    texts = {
        "broker.conf": CONF.format(limit=300),
        "runtime.json": json.dumps(settings),
        "policies.yaml": json.dumps({"broker": settings, "namespaces": {"public/default": SHOWN}}),
        "log.jsonl": "".join(f"{json.dumps(each)}\n" for each in commands),
    }
    (tmp_path / form).write_text(texts[form])
    topic = "public/default/quota-blocks"
    files = [tmp_path / form, *[tmp_path / "namespace.json"] * (form in ("broker.conf", "runtime.json")),
             f"{topic}={tmp_path / 'topic.json'}"]  # fmt: skip
    code, text = run(*options, ",".join(map(str, files)), topic, "--quota", "--retention", "--producers")
    assert code == 0, text
    for line in (
        "  destination_storage: exceeded\n    limit 300 bytes, used 516 bytes, headroom -216 bytes (producer_exception, broker)\n",
        "    limit 60 s, used ",
        " (consumer_backlog_eviction, namespace)\n",
        "  retention of what is consumed: 9 min, 8 MB (broker)\n",
        "0 producers, the limit is 3\n",
        "publishRate           the limit is 5 messages/s (broker)",
        "every 60 s (backlogQuotaCheckIntervalInSeconds)",
        "topic.json: 1 policy applied",
    ):
        assert line in text, text
    assert "Not known: " not in text


def test_files_that_say_nothing_of_a_level_leave_what_is_below_it_unknown(
    scene: Scene, tmp_path: Path
) -> None:
    """A broker's default holds only if the levels above are known not to set it."""
    *options, _ = pasted(scene, tmp_path, "quota_blocks")
    (tmp_path / "broker.conf").write_text(CONF.format(limit=300))
    code, text = run(*options, tmp_path / "broker.conf", "--quota", "--retention")
    assert code == 0
    assert "retention of what is consumed: not known" in text
    assert "Not known: the policies of the namespace: give --policies" in text
    assert "every 60 s (backlogQuotaCheckIntervalInSeconds)" in text


def test_settings_that_no_broker_takes(scene: Scene, tmp_path: Path) -> None:
    *options, _ = pasted(scene, tmp_path, "quota_blocks")
    (tmp_path / "broker.conf").write_text("defaultRetentionTimeInMinutes=soon\n")
    code, text = run(*options, tmp_path / "broker.conf")
    assert (code, "defaultRetentionTimeInMinutes" in text) == (2, True), text


def test_pasted_partitions(scene: Scene, tmp_path: Path) -> None:
    topic = topic_of("partitions")
    parts = {
        name: (tmp_path / f"{name}.json")
        for name in ("partitioned-stats?perPartition=true", "partitioned-internalStats")
    }
    for name, file in parts.items():
        file.write_text(json.dumps(scene.rest.get(f"{path(topic)}/{name}")))
    stats, internal = parts.values()
    code, text = run("--stats", stats, "--internal-stats", internal)
    assert code == 0
    assert text.startswith(f"{topic} (3 partitions): 2 of 4 subscriptions of partitions may need you")
    code, text = run(
        "--stats", stats, "--internal-stats", internal, f"{topic}-partition-1", "--subscription", "stuck"
    )
    assert (code, text.splitlines()[0]) == (
        0,
        f"{topic}-partition-1, subscription stuck (Shared): no consumers",
    )
    code, text = run("--stats", stats, "other")
    assert (code, "has no topic other: there are " in text) == (2, True), text
    whole = json.loads(stats.read_text()) | {"partitions": {}}
    stats.write_text(json.dumps(whole))
    code, text = run("--stats", stats)
    assert code == 0
    assert "Not known: the stats of each of the 3 partitions: add --per-partition" in text


def test_a_token(tmp_path: Path) -> None:
    """401 without one; with one, the answers."""
    with running(security=Security(authentication=TokenAuthentication.with_secret(secret()))) as broker:
        url = str(broker.server.admin_url)
        with broker.client(authentication=pulsar.AuthenticationToken(token())) as client:
            client.create_producer("t").close()
        code, text = run("--admin-url", url, "t")
        assert (code, "401: the cluster refuses it: give a token" in text) == (1, True), text
        file = tmp_path / "token"
        file.write_text(token() + "\n")
        code, text = run("--admin-url", url, "t", "--token-file", file)
        assert (code, text) == (0, "persistent://public/default/t: no subscriptions\n")
        file.write_text("wrong")
        assert run("--admin-url", url, "t", "--token-file", file)[0] == 1
