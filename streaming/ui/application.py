"""The page and its JSON: a WSGI application. It only reads, and each request costs no more than its bounds say."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, get_args
from urllib.parse import parse_qs

import msgspec

from schemas.rules import RECORD_RULES
from sinks.storage import plain
from streaming.answers.history.folders import Budget, TooMuch
from streaming.answers.whatif.report import report
from streaming.broker.position import from_words
from streaming.metrics.browsers import refusal
from streaming.metrics.endpoint import WsgiApplication
from streaming.ui import figures
from streaming.ui.explanation import SECONDS, About, CannotAnswer, Gone, Question, Task, explain
from streaming.ui.output_rows import LOSSES, latest
from streaming.ui.page import POLICY, REPORT_POLICY, page
from streaming.ui.view import View

NAMESPACES = 50
"""The most namespaces whose policies are shown at once."""

QUOTAS = 10
"""The most quotas of the overview."""

SHARE = 20
"""Sums over all topics are made anew when so many times as long has passed as they took: they take 5 % of the time at most."""

LATEST = 100
LATEST_SECONDS, LATEST_ROWS = 3.0, 2_000_000
"""The most of the latest rows, and what finding them may take."""

_logger = logging.getLogger(__name__)
_TEXT, _FIELDS = RECORD_RULES[0].most or 0, 20  # no text is longer than the name of a topic
_TRIES = 3
CANARIES = "/canaries"
"""The page of the canaries, which is a report of its own."""

_HTML = "text/html; charset=utf-8"
_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]


class Wrong(ValueError):
    """A request that can't be answered. The text says why."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


class Parameters:
    """The parameters of a request."""

    def __init__(self, query: str) -> None:
        try:
            found = parse_qs(query, max_num_fields=_FIELDS)
        except ValueError as error:
            raise Wrong(str(error)) from None
        self._values = {name: values[-1] for name, values in found.items()}

    def text(self, name: str, default: str = "") -> str:
        """A text. Raises `Wrong` if it is too long."""
        found = self._values.get(name, default)
        if len(found) > _TEXT:
            raise Wrong(f"{name}: longer than {_TEXT} characters")
        return found

    def number(self, name: str, most: int, default: int | None = None) -> int:
        """A number from 0 to `most`. Raises `Wrong`."""
        text = self._values.get(name, "" if default is None else str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise Wrong(f"{name}: expected a number from 0 to {most:,}")
        return int(text)

    def one_of(self, name: str, known: Iterable[str], default: str) -> str:
        """One of some words. Raises `Wrong`."""
        found = self._values.get(name, default)
        if found not in (words := list(known)):
            raise Wrong(f"{name}: expected {' or '.join(words)}")
        return found


class Pages:
    """Answers the requests of the page about a view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._explaining, self._reading, self._counting = (threading.Lock() for _ in range(3))
        self._sums: dict[str, Any] = {}
        self._sums_until = 0.0
        self.routes: Mapping[str, Callable[[Parameters], Any]] = {
            "/api/overview": self._overview,
            "/api/topics": self._topics,
            "/api/subscriptions": self._subscriptions,
            "/api/twin": self._twin,
            "/api/topic": self._topic,
            "/api/history": self._history,
            "/api/latest": self._latest,
            "/api/batches": self._batches,
            "/api/explain": self._explain,
        }

    def _overview(self, _: Parameters) -> Any:
        with _Turn(self._counting):
            began = time.monotonic()
            if began >= self._sums_until:
                known = self._view.figures()
                self._sums = {
                    "totals": figures.totals(known)._asdict(),
                    "quotas": figures.quotas(known, QUOTAS),
                }
                self._sums_until = began + SHARE * (time.monotonic() - began)
            return {"status": self._view.status(), **self._sums}

    def _topics(self, asked: Parameters) -> Any:
        order = asked.one_of("order", figures.TOPIC_ORDERS, "storage")
        page, search = asked.number("page", figures.PAGES - 1, 0), asked.text("search")
        with _Turn(self._counting):
            return figures.topics(self._view.figures(), search, order, page)

    def _subscriptions(self, asked: Parameters) -> Any:
        order = asked.one_of("order", figures.SUBSCRIPTION_ORDERS, "backlog")
        page, search = asked.number("page", figures.PAGES - 1, 0), asked.text("search")
        with _Turn(self._counting):
            return figures.subscriptions(self._view.figures(), search, order, page)

    def _twin(self, asked: Parameters) -> Any:
        order = asked.one_of("order", figures.DRIFT_ORDERS, "drift")
        page, search = asked.number("page", figures.PAGES - 1, 0), asked.text("search")
        with _Turn(self._counting):
            return figures.twin(self._view.figures(), search, order, page)

    def _topic(self, asked: Parameters) -> Any:
        name = asked.text("topic")
        known = self._view.topic(name)
        if known is None:
            raise Wrong(f"there is no topic {name} now", HTTPStatus.NOT_FOUND)
        return figures.topic(self._view.figures(), known, asked.number("page", figures.PAGES - 1, 0))

    def _history(self, asked: Parameters) -> Any:
        with _Turn(self._reading):
            return self._view.history(asked.text("topic") or None)

    def _latest(self, asked: Parameters) -> Any:
        if self._view.tables is None:
            raise CannotAnswer("no output rows are kept: the query runs with --no-tables")
        kinds = [each for each in asked.text("kinds").split(",") if each] or [*LOSSES]
        if not LOSSES.keys() >= {*kinds}:
            raise Wrong(f"kinds: expected some of {', '.join(LOSSES)}")
        most = asked.number("most", LATEST, LATEST)
        with _Turn(self._reading):
            budget = Budget(LATEST_SECONDS, LATEST_ROWS)
            return latest(self._view.tables, kinds, most, asked.text("topic") or None, budget)

    def canaries(self) -> bytes:
        """The report of the canaries. Raises `CannotAnswer`."""
        with _Turn(self._reading):
            found = self._view.canaries()
        if found is None:
            raise CannotAnswer("there are no canaries: start the query with --canary NAME=FILE")
        return report(found).encode()

    def _batches(self, _: Parameters) -> Any:
        return self._view.batches()

    def _explain(self, asked: Parameters) -> Any:
        about = asked.one_of("about", get_args(About), "message")
        question = Question(about, asked.text("topic") or None)  # type: ignore[arg-type]
        if question.topic is None and about != "policies":
            raise Wrong("topic: expected the name of a topic")
        question.subscription = asked.text("subscription") or None
        if about == "message":
            if position := asked.text("position"):
                try:
                    question.ledger, question.entry = from_words(position)
                except ValueError as error:
                    raise Wrong(f"position {error}") from None
            else:
                question.producer = asked.text("producer")
                question.sequence_id = asked.number("sequence_id", (1 << 63) - 1)
        with _Turn(self._explaining):
            found = self._explained(question)
        if question.topic is None:
            search = asked.text("search")
            matching = [each for each in found if search in each["namespace"]]
            return {"rows": matching[:NAMESPACES], "total": len(matching)}
        return found

    def _explained(self, question: Question) -> Any:
        """The answer. A query that goes on deletes entries, so its states and its store may not go together."""
        partition = self._partition(question.topic)
        for left in reversed(range(_TRIES)):
            try:
                return explain(Task(self._view.folder, self._view.states(partition), question, SECONDS))
            except Gone as gone:
                if not self._view.status()["changes"]:
                    raise
                if not left:
                    raise CannotAnswer(
                        f"the query may have deleted what this reads: try again. If it keeps failing: {gone}"
                    ) from gone
        raise AssertionError

    def _partition(self, topic: str | None) -> int | None:
        """The ingress partition that has a topic. A namespace's policies are in all: the first. None: it isn't known."""
        if topic is None:
            return min(self._view.figures().partitions, default=None)
        for name in (topic, f"persistent://{topic}", f"persistent://public/default/{topic}"):
            if (known := self._view.topic(name)) is not None:
                return known.partition
        return None


class _Turn:
    """Lets one request at a time do something. Raises `Wrong` if it is not this one's turn within some seconds."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=SECONDS):
            raise Wrong("too many requests are in progress: try again", HTTPStatus.SERVICE_UNAVAILABLE)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def application(
    view: View, *, elsewhere: WsgiApplication | None = None, only_loopback: bool = True
) -> WsgiApplication:
    """The page at ``/`` and its JSON below ``/api/``.

    `elsewhere` answers what is neither. `only_loopback`: refuse what a page of another site can send, see `streaming.metrics.browsers`.
    """
    pages = Pages(view)
    html = page().encode()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        wrong = refusal(environ["REQUEST_METHOD"], _headers(environ)) if only_loopback else None
        if (
            wrong is None
            and path not in ("/", CANARIES)
            and path not in pages.routes
            and elsewhere is not None
        ):
            return elsewhere(environ, start_response)
        status, kind, body, policy = HTTPStatus.OK, "application/json", b"", POLICY
        try:
            if wrong is not None:
                raise Wrong(wrong, HTTPStatus.FORBIDDEN)
            if environ["REQUEST_METHOD"] != "GET":
                raise Wrong("only GET is supported", HTTPStatus.METHOD_NOT_ALLOWED)
            if path == "/":
                kind, body = _HTML, html
            elif path == CANARIES:
                kind, body, policy = _HTML, pages.canaries(), REPORT_POLICY
            elif path in pages.routes:
                body = msgspec.json.encode(pages.routes[path](Parameters(environ.get("QUERY_STRING", ""))))
            else:
                raise Wrong("there is no such page", HTTPStatus.NOT_FOUND)
        except Wrong as error:
            status, body = error.status, _error(error)
        except (CannotAnswer, TooMuch, FileNotFoundError) as error:
            status, body = HTTPStatus.NOT_FOUND, _error(error)
        except Exception as error:  # such as of a store that does not answer
            _logger.warning("The page got no answer to %s: %s", path, plain(error))
            status, body = HTTPStatus.INTERNAL_SERVER_ERROR, _error(error)
        headers = [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy),
        ]
        headers += _HEADERS
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    return answer


def _error(error: Exception) -> bytes:
    return msgspec.json.encode({"error": plain(error)})


def _headers(environ: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a request, by names in lower case."""
    found = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    return {**found, "content-type": environ.get("CONTENT_TYPE", "")}
