"""What a log must not do: stop the fold, or keep it busy for ever."""

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Finding(AssertionError):
    """What is wrong: a name, and the figures."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class OutOfTime(BaseException):
    """The log hangs. The fold does not catch it."""


@contextmanager
def limited(seconds: int) -> Iterator[Callable[[str], None]]:
    """Turns all that stops a fold into a `Finding`, and a step that takes so much CPU time, too.

    Gives a function that begins the next step, with the words for where the judge is.
    """
    where = "the first step"

    def begin(step: str) -> None:
        nonlocal where
        where = step
        signal.setitimer(signal.ITIMER_PROF, seconds)

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    former = signal.signal(signal.SIGPROF, stop)
    begin(where)
    try:
        yield begin
    except Finding:
        raise
    except OutOfTime as error:
        raise Finding(
            f"hang at {where.split(',')[0]}", f"more than {seconds} s at {where}, in {place(error)}"
        ) from error
    except Exception as error:
        cause = error.__cause__ or error
        raise Finding(f"{type(cause).__name__} in {place(cause)}", str(error)) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def place(error: BaseException) -> str:
    """The innermost module of the product in a traceback, with the function."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "tests" not in Path(frame.filename).parts
    ]
    own = [
        frame for frame in frames if {"streaming", "schemas", "sinks"} & set(Path(frame.filename).parts)
    ] or frames
    return f"{Path(own[-1].filename).stem}.{own[-1].name}" if own else "the judge"
