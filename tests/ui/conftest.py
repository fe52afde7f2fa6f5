"""A replay with losses and with names that a browser could mistake for HTML, its page, and one browser for all tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streaming.answers.history.folders import Folders
from streaming.jobs.replay import replay_in_process
from streaming.log.table import LOGICAL, log_table
from streaming.metrics.endpoint import Endpoint
from streaming.state.saved import read_states
from streaming.ui.application import application
from streaming.ui.explanation import CannotAnswer, Task, answer
from streaming.ui.view import FolderView
from tests.ui.browser import Browser, chromium
from tests.ui.log import records


@pytest.fixture(scope="session")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the replay."""
    out = tmp_path_factory.mktemp("ui") / "out"
    found = records()
    log = log_table(
        LOGICAL,
        timestamp=[each.timestamp for each in found],
        topic=[each.topic for each in found],
        value=[json.dumps(each.command).encode() for each in found],
    )
    replay_in_process(log, out, partitions=2)
    return out


@pytest.fixture(scope="session", autouse=True)
def explanations_in_this_process() -> Iterator[None]:
    """A process for each takes a second. Those that are tested take their own."""

    def explained(task: Task) -> Any:
        found = json.loads(msgspec.json.encode(answer(task)))
        if "error" in found:
            raise CannotAnswer(found["error"])
        return found["answer"]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("streaming.ui.application.explain", explained)
        yield


@pytest.fixture(scope="session")
def view(replayed: Path) -> FolderView:
    found = Folders.of(replayed)
    assert found.state is not None
    states = read_states(found.state)
    assert states is not None
    return FolderView(str(replayed), found, lambda: states, finished=True)


@pytest.fixture(scope="session")
def url(view: FolderView) -> Iterator[str]:
    """Where the page of the replay is."""
    endpoint = Endpoint("0")
    endpoint.start(application(view))
    yield endpoint.url
    endpoint.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if (program := chromium()) is None:
        pytest.skip("NO BROWSER: install Chromium, or name one in CHROMIUM, to test the page")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
