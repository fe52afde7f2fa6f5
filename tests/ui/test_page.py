"""The page in a real browser: what it shows, by keyboard, on a narrow screen, in the dark, and with hostile names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from schemas.metrics import PartitionMetrics
from streaming.metrics.endpoint import Endpoint
from streaming.metrics.query import QueryMetrics
from streaming.ui.application import application
from streaming.ui.view import RunView
from tests.ui.browser import Browser, Tab
from tests.ui.log import HOSTILE, HOSTILE_PRODUCER, HOSTILE_SUBSCRIPTION, QUOTA, START, TTL
from tests.ui.test_answers import PROGRESS, mirrored, topic

PAGES = (
    "",
    "topics",
    "subscriptions",
    "losses",
    "message",
    "twin",
    "policies",
    "batches",
    f"topic/{quote(QUOTA, safe='')}",
)


class Opener:
    """Opens tabs of the page, and closes them at the end. In no tab may be an error, nor a request to elsewhere."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser, self._url = browser, url
        self._tabs: list[Tab] = []

    def __call__(self, page: str = "", *, width: int = 1200, dark: bool = False) -> Tab:
        tab = Tab(self._browser, f"{self._url}/#/{page}", width=width, dark=dark)
        self._tabs.append(tab)
        tab.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
        return tab

    def close(self) -> None:
        for tab in self._tabs:
            assert tab.problems() == []
            tab.close()


@pytest.fixture
def opened(browser: Browser, url: str) -> Iterator[Opener]:
    found = Opener(browser, url)
    yield found
    found.close()


def test_the_overview(opened: Opener) -> None:
    tab = opened()
    tab.shows("consumer_backlog_eviction destination_storage 4000 B (namespace)")
    tab.shows("messageTTL 3600 s (namespace)")
    tab.wait("document.querySelectorAll('svg[role=img]').length === 2")
    assert tab.run("document.title") == "Overview · Magnetar"
    assert re.search(r"replay \S+: finished, 2026-01-01 06:0\d:\d\d UTC", tab.text())
    assert tab.run("document.querySelector('#pause').hidden")


def test_names_are_text(opened: Opener) -> None:
    tab = opened("topics")
    tab.shows(HOSTILE.removeprefix("persistent://"))
    tab = opened("subscriptions")
    tab.shows(HOSTILE_SUBSCRIPTION)
    tab = opened(f"topic/{quote(HOSTILE, safe='')}")
    tab.shows(HOSTILE_SUBSCRIPTION)
    tab = opened(f"message/{quote(HOSTILE, safe='')}")
    tab.run(f"document.forms[0].producer.value = {HOSTILE_PRODUCER!r}")
    tab.run("document.forms[0].sequence_id.value = '0'")
    tab.run("document.forms[0].requestSubmit()")
    tab.shows(f"received from {HOSTILE_PRODUCER}, sequence id 0")
    assert tab.run("window.hacked") is None
    assert tab.run("document.images.length") == 0


def test_a_message_by_keyboard(opened: Opener) -> None:
    tab = opened()
    tab.press("Tab", "Enter")  # the first thing is a link to the content
    assert tab.run("document.activeElement.id") == "main"
    tab.run("document.activeElement.blur()")
    while tab.run("document.activeElement.textContent") != "Find a message":
        tab.press("Tab")
    tab.press("Enter")
    tab.wait("document.querySelector('h1').textContent === 'Find a message'")
    assert tab.run("document.querySelector('nav a[aria-current=page]').textContent") == "Find a message"
    assert tab.run("document.activeElement.id") == "main"
    for text in ("shop/day/clicks", "", "web", "3"):
        tab.press("Tab", *text)
    tab.press("Enter")
    tab.shows("evicted by")
    tab.shows("What became of it")
    assert tab.run("document.querySelector('article .badge').textContent") == "evicted"


def test_search_and_order(opened: Opener) -> None:
    tab = opened("topics")
    tab.shows("3 topics")
    tab.run("document.querySelector('input[type=search]').focus()")
    tab.press(*"night")
    tab.shows("1 topic found")
    assert tab.run("document.querySelectorAll('tbody tr').length") == 1
    # What is replaced does not take the focus away.
    assert tab.run("document.activeElement.value") == "night"
    tab.run("document.querySelector('tbody a').focus()")
    tab.run("refresh()")
    assert tab.run("document.activeElement.textContent") == TTL.removeprefix("persistent://")
    tab.press("Enter")
    tab.wait("document.querySelector('h1').textContent === 'shop/night/orders'")


def test_questions_about_a_topic(opened: Opener) -> None:
    tab = opened(f"topic/{quote(QUOTA, safe='')}")
    tab.shows("Policies in force")

    def ask(text: str) -> None:
        tab.run(
            f"[...document.querySelectorAll('button')].find((each) => each.textContent === {text!r}).click()"
        )

    ask("Why do subscriptions get nothing?")
    tab.shows("archive (Shared): ")
    ask("Why has no quota evicted?")
    tab.shows("The slowest cursor is archive")
    ask("Why are its ledgers still there?")
    tab.shows("Retention: 0 min")
    ask("What does TTL expire next?")
    tab.shows("Message TTL is off (messageTTL is 0, broker).")
    ask("Is it deleted if nobody uses it?")
    tab.shows("in use: it has producers: ")
    tab.shows("subscriptionExpirationTime is 0 (broker)")
    ask("What does deduplication forget?")
    tab.shows("Deduplication is off (broker).")
    ask("Policies in force")
    tab.shows("maxUnackedMessagesPerConsumer")


def test_what_ttl_expires_next(opened: Opener) -> None:
    tab = opened(f"topic/{quote(TTL, safe='')}")
    tab.run(
        "[...document.querySelectorAll('button')].find((each) => each.textContent.includes('TTL')).click()"
    )
    tab.shows("messageTTL: 3,600 s (namespace).")
    assert "reports" in tab.run("document.querySelector('[role=status] table').textContent")


def test_kinds_of_losses(opened: Opener) -> None:
    tab = opened("losses")
    tab.shows("consumer_backlog_eviction")
    tab.run("document.querySelectorAll('input[type=checkbox]').forEach((each) => each.click())")
    tab.shows("malformed: ")
    tab.shows("retention size")
    assert "consumer_backlog_eviction" not in tab.run("document.querySelector('main table').textContent")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_on_a_narrow_screen(opened: Opener, page: str) -> None:
    tab = opened(page, width=360)
    tab.wait(
        "![...document.querySelectorAll('.note')].some((each) => ['…', 'Looking …'].includes(each.textContent))"
    )
    assert tab.run("document.documentElement.scrollWidth") <= 360
    assert tab.run("[...document.querySelectorAll('main *')].filter((each) => each.getBoundingClientRect().right > 361"
                   " && !each.closest('caption, thead')).map((each) => each.outerHTML.slice(0, 200))") == []  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast_and_names(opened: Opener, page: str, dark: bool) -> None:
    tab = opened(page, dark=dark)
    tab.wait(
        "![...document.querySelectorAll('.note')].some((each) => ['…', 'Looking …'].includes(each.textContent))"
    )
    faint = tab.run(CONTRAST)
    assert faint == []
    found = tab.names()
    for role, name in found:
        if role in (
            "button",
            "link",
            "textbox",
            "searchbox",
            "combobox",
            "checkbox",
            "image",
            "table",
            "meter",
            "region",
        ):
            assert name, (role, found)
    roles = [role for role, _ in found]
    assert roles.count("main") == 1
    assert roles.count("navigation") == 1
    levels = tab.run(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map((each) => Number(each.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1


CONTRAST = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => { for (let each = element; each; each = each.parentElement) {
    const found = rgb(getComputedStyle(each).backgroundColor); if (found.length < 4 || found[3] > 0) return found; } return [255, 255, 255]; };
  return [...document.querySelectorAll('body *')].filter((each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .filter((each) => each.checkVisibility() && !each.disabled && !each.closest('.skip, svg, script, style, noscript, caption, title, option'))
    .map((each) => { const [one, other] = [light(rgb(getComputedStyle(each).color)), light(behind(each))].sort((a, b) => b - a);
      return [(one + 0.05) / (other + 0.05), each.outerHTML.slice(0, 120)]; }).filter(([ratio]) => ratio < 4.5);
})()"""
"""The texts that have less contrast with what is behind them than WCAG's level AA asks for, 4.5."""


def test_a_twin(browser: Browser, tmp_path: Path) -> None:
    """Names of a cluster are text, and a wide table fits a narrow screen."""
    metrics = QueryMetrics()
    view = RunView("kafka://h:1/t", metrics, str(tmp_path), lambda _: [])
    endpoint = Endpoint("0")
    endpoint.start(application(view))
    tab = Tab(browser, f"{endpoint.url}/#/twin", width=360)
    tab.shows("Nothing is mirrored here.")
    measured = PartitionMetrics(0, "c", START, 4, 60_000, 9, [*mirrored()], [], {})
    metrics.batch({}, [measured])
    metrics.progress(PROGRESS)
    view.progress(PROGRESS)
    tab.run("again()")
    tab.shows(HOSTILE.removeprefix("persistent://"))
    tab.shows(HOSTILE_SUBSCRIPTION)
    tab.shows("entries were passed here that the source still has")
    assert tab.run(
        "[...document.querySelectorAll('tbody tr')].map((row) => [...row.cells].slice(1, 6).map((cell) => cell.textContent))"
    ) == [
        [HOSTILE_SUBSCRIPTION, "−7", "−5", "+2", ""],
        ["storage", "+3", "", "", "−2.0 kB"],
        ["s0", "0", "0", "0", ""],
        ["storage", "0", "", "", "0 B"],
    ]
    assert re.search(r"2026-01-01 00:00:00 \([\d.]+ d ago\)", tab.text())
    assert "never" in tab.text()
    assert tab.run("document.documentElement.scrollWidth") <= 360
    assert tab.run(CONTRAST) == []
    tab.run("document.querySelector('select').value = 'size'")
    tab.run("document.querySelector('select').dispatchEvent(new Event('change'))")
    tab.wait("document.querySelector('tbody td:nth-child(2)').textContent === 'storage'")
    assert tab.run("window.hacked") is None
    assert tab.problems() == []
    tab.close()
    endpoint.close()


def test_a_running_query(browser: Browser, tmp_path: Path) -> None:
    """It follows the query, unless it is paused, and says when nobody answers."""
    metrics = QueryMetrics()
    view = RunView("kafka://h:1/t", metrics, str(tmp_path), lambda _: [])
    endpoint = Endpoint("0")
    endpoint.start(application(view))
    tab = Tab(browser, f"{endpoint.url}/#/topics")
    tab.shows("query on kafka://h:1/t: starting")
    tab.shows("No topics.")

    def batch(number: int, storage: int) -> None:
        measured = PartitionMetrics(0, "c", START, 4, 60_000, 9, [topic(QUOTA, storage)], [], {})
        metrics.batch({}, [measured])
        done = PROGRESS._replace(batch_id=number)
        metrics.progress(done)
        view.progress(done)

    def looked_again() -> str:
        tab.run("again()")
        return tab.text()

    batch(7, 5000)
    assert re.search(r"running, micro-batch 7, .* UTC", looked_again())
    tab.shows("5.0 kB")
    tab.run("document.querySelector('#pause').focus()")
    tab.press(" ")
    assert tab.run("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
    batch(8, 6000)
    assert "micro-batch 7" in looked_again()
    tab.press(" ")
    assert "micro-batch 8" in looked_again()
    tab.shows("6.0 kB")
    tab.run("location.hash = '#/'")
    tab.wait("document.querySelectorAll('svg[role=img]').length === 4")
    assert "Micro-batches: how long each took" in tab.text()
    metrics.stopped()
    assert ": stopped" in looked_again()
    assert tab.problems() == []
    endpoint.close()
    assert "the server does not answer" in looked_again()
    tab.close()
