"""Explanations, each made in a process of its own: what one takes is bounded, and the query does not notice it.

The process gets a `Task` on its standard input, and answers with JSON on its standard output.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any, Literal

import msgspec

from streaming.fold.records import StateRow

SECONDS = 60.0
"""The longest that an explanation may take."""

ROWS = 2_000_000
"""The most matching rows that it may read."""

_MEMORY = 2 << 30
_NICE = 10


About = Literal["message", "delivery", "quota", "retention", "ttl", "inactive", "deduplication", "policies"]
"""What a question is about. ``policies``: those of a topic, or of all namespaces if there is none."""


class Question(msgspec.Struct):
    """What is asked, as `magnetar explain` asks it."""

    about: About
    topic: str | None = None
    ledger: int | None = None
    entry: int | None = None
    producer: str | None = None
    sequence_id: int | None = None
    subscription: str | None = None


class Task(msgspec.Struct):
    """A question about a folder, and the states that are needed. `seconds`: what the answer may take."""

    folder: str
    states: list[StateRow]
    question: Question
    seconds: float


class CannotAnswer(LookupError):
    """There is no answer. The text says why."""


class Gone(CannotAnswer):
    """The store lacks an entry that the states have. A running query may have deleted it since."""


def explain(task: Task) -> Any:
    """The answer in lists, objects and plain values. Raises `CannotAnswer`."""
    try:
        ran = subprocess.run(
            [sys.executable, "-P", "-m", __name__],  # -P: the folder at hand may have packages of these names
            input=msgspec.msgpack.encode(task),
            capture_output=True,
            timeout=task.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotAnswer(
            f"this takes longer than {task.seconds:g} s: ask `magnetar explain`, which may take longer"
        ) from None
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").splitlines() or [f"it ended with {ran.returncode}"]
        raise CannotAnswer(f"the explanation failed ({said[-1]}): ask `magnetar explain`")
    found = msgspec.json.decode(ran.stdout)
    if "gone" in found:
        raise Gone(found["gone"])
    if "error" in found:
        raise CannotAnswer(found["error"])
    return found["answer"]


def answer(task: Task) -> dict[str, Any]:
    """The ``answer``, or the ``error`` (``gone``: see `Gone`) that says why there is none, made in this process."""
    from schemas.entries import EntryNotFound
    from sinks.storage import BadUrl
    from streaming.answers.explain.delivery import builtins
    from streaming.answers.history.folders import Budget, Folders, NotFound, TooMuch
    from streaming.broker.errors import StateVersionError

    try:
        folders = Folders.of(task.folder)
        folders.at, folders.budget = task.states, Budget(task.seconds, ROWS)
        return {"answer": builtins(_answer(folders, task.question))}
    except EntryNotFound as error:
        return {"gone": str(error)}
    except (NotFound, TooMuch, BadUrl, StateVersionError, FileNotFoundError) as error:
        return {"error": str(error)}


def main() -> None:
    """Answer the task on the standard input."""
    os.nice(_NICE)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(msgspec.json.encode(answer(task)))


def _answer(folders: Any, question: Question) -> object:
    from streaming.answers.explain import checks, life, storage
    from streaming.answers.explain.delivery import explain_deliveries
    from streaming.answers.explain.policies import namespace_policies, topic_policies
    from streaming.broker.position import Position

    if question.topic is None:
        return namespace_policies(folders)
    topic = folders.topic(question.topic)
    match question:
        case Question(about="policies"):
            return topic_policies(folders, topic)
        case Question(about="quota"):
            return storage.explain_quotas(folders, topic)
        case Question(about="retention"):
            return storage.explain_retention(folders, topic)
        case Question(about="ttl"):
            return checks.explain_expiry(folders, topic)
        case Question(about="inactive"):
            return checks.explain_inactivity(folders, topic)
        case Question(about="deduplication"):
            return checks.explain_deduplication(folders, topic)
        case Question(about="message", ledger=int(ledger), entry=int(entry)):
            return [life.by_position(folders, topic, Position(ledger, entry))]
        case Question(about="message", producer=str(producer), sequence_id=int(number)):
            return life.by_sequence_id(folders, topic, producer, number)
    return explain_deliveries(folders, topic, question.subscription)


if __name__ == "__main__":
    main()
