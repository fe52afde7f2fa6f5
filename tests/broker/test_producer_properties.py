"""Whatever producers do: exclusive access is exclusive, the epoch never falls, every request has one final answer."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.commands import AccessMode, ConnectionLost
from schemas.effects import Effect, Error, ProducerSuccess
from streaming.broker.broker import Broker
from streaming.broker.entries import NoEntries
from tests.broker.kit import Run

pytestmark = pytest.mark.feature("B1")

CONNECTIONS, IDS = ["x", "y", "z"], [1, 2]
NAMES = ["a", "b", "c", None]
MODES: list[AccessMode] = ["Shared", "Exclusive", "ExclusiveWithFencing", "WaitForExclusive"]

Handle = tuple[str, int]


class Create(NamedTuple):
    handle: Handle
    name: str | None
    mode: AccessMode
    topic_epoch: int | None
    epoch: int


class Close(NamedTuple):
    handle: Handle


class Lose(NamedTuple):
    connection: str


class Unload(NamedTuple):
    pass


Step = Create | Close | Lose | Unload

HANDLES = st.tuples(st.sampled_from(CONNECTIONS), st.sampled_from(IDS))
CREATIONS = st.builds(
    Create,
    HANDLES,
    st.sampled_from(NAMES),
    st.sampled_from(MODES),
    st.none() | st.integers(0, 5),
    st.integers(0, 1),
).map(
    # quirk: a promotion takes any epoch that is carried, so those who may wait carry none
    lambda step: step._replace(topic_epoch=None) if step.mode == "WaitForExclusive" else step
)
STEPS = st.one_of(
    CREATIONS,
    CREATIONS,
    st.builds(Close, HANDLES),
    st.builds(Close, HANDLES),
    st.builds(Lose, st.sampled_from(CONNECTIONS)),
    st.builds(Unload),
)


class Answers:
    """The responses to every request. `waits` = requests whose client waits for a second response."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.requested: dict[int, Handle] = {}
        self.final: set[int] = set()
        self.waits: set[int] = set()
        self.given_up: set[int] = set()

    def step(self, step: Step) -> None:
        run = self.run
        match step:
            case Create((connection, id_), name, mode, topic_epoch, epoch):
                self.requested[run.requests + 1] = step.handle
                fields: dict[str, Any] = {
                    "producer_access_mode": mode,
                    "topic_epoch": topic_epoch,
                    "epoch": epoch,
                }
                self.read(run.create_producer(name, id_, connection, **fields))
                assert run.requests in self.final | self.waits
            case Close(handle):
                self.give_up(handle)
                self.read(run.close_producer(handle[1], handle[0]))
            case Lose(connection):
                for id_ in IDS:
                    self.give_up((connection, id_))
                self.read(run.do(ConnectionLost(connection=connection), None))
            case Unload():
                self.read(run.unload())
                # All but the first that waited get no answer, as recorded from 4.0.7.
                self.given_up |= self.waits
                self.waits = set()

    def give_up(self, handle: Handle) -> None:
        gone = {request for request in self.waits if self.requested[request] == handle}
        self.waits -= gone
        self.given_up |= gone

    def read(self, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, ProducerSuccess | Error):
                continue
            request = effect.request_id
            assert request in self.requested
            assert request not in self.final | self.given_up, "answered again"
            if isinstance(effect, ProducerSuccess) and not effect.fields.producer_ready:
                assert request not in self.waits
                self.waits.add(request)
            else:
                self.waits.discard(request)
                self.final.add(request)


def check(run: Run, requests: Answers) -> None:
    topic = run.topic
    access, present = topic.access, topic.producers
    if access.owner is None:
        assert all(producer.access_mode == "Shared" for producer in present.values())
        assert not access.waiting or present
    else:
        assert list(present) == [access.owner]
        assert present[access.owner].access_mode != "Shared"
        assert access.epoch is not None
    handles = {(producer.connection, producer.producer_id): name for name, producer in present.items()}
    assert {handle: topic.producer_handles.get(*handle) for handle in topic.producer_handles} == handles
    assert topic.closing_producers == {}
    alive = [waiting.request_id for waiting in access.waiting if not waiting.gone]
    assert sorted(alive) == sorted(requests.waits)


@given(steps=st.lists(STEPS, max_size=30), cuts=st.sets(st.integers(0, 29)))
def test_exclusive_access(steps: list[Step], cuts: set[int]) -> None:
    run = Run()
    run.create_producer("first")
    run.close_producer()
    requests = Answers(run)
    requests.requested[1] = ("client", 1)
    requests.final.add(1)
    for index, step in enumerate(steps):
        if index in cuts:
            run.broker = Broker.decode(run.broker.encode(), NoEntries())
        before = _epoch(run)
        requests.step(step)
        assert _epoch(run) >= before
        check(run, requests)
    while handles := list(run.topic.producer_handles):
        requests.step(Close(handles[0]))
        check(run, requests)
    assert requests.waits == set()
    assert requests.final | requests.given_up == set(requests.requested)
    assert not requests.final & requests.given_up


def _epoch(run: Run) -> int:
    epoch = run.topic.access.epoch
    return -1 if epoch is None else epoch
