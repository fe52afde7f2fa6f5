"""What a failed query says: the cause, in a sentence, and what to do."""

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from streaming.produce import KafkaUrl, KafkaUrlError
from streaming.runtime.worker_daemon import Quiet
from streaming.spark.failure import QueryFailed, cause, explained

HEAD = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Reason: Traceback (most recent call last):\n"
TAIL = "\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x\njava.lang.Error: not the cause"


IN_A_WORKER = """pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "operator.py", line 159, in apply
streaming.spark.operator.ApplyError: partition 0, offset 0: ValueError: boom"""
A_WORKER_KILLED = """py4j.protocol.Py4JJavaError: An error occurred while calling o3342.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 3 times
\tat org.apache.spark.Some: thing
Driver stacktrace:
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.sql.…'.
Caused by: java.io.EOFException"""


@pytest.mark.parametrize(
    ("story", "sentence"),
    [
        (IN_A_WORKER, "ApplyError: partition 0, offset 0: ValueError: boom"),
        ("ValueError: of Python itself.", "ValueError: of Python itself"),
        (A_WORKER_KILLED, "Python worker exited unexpectedly (crashed)"),
    ],
)
def test_the_cause(story: str, sentence: str) -> None:
    assert cause(HEAD + story + TAIL) == sentence


def test_without_a_cause_the_first_line_counts() -> None:
    assert cause("[STREAM_FAILED] it stopped\n=== Streaming Query ===\n") == "[STREAM_FAILED] it stopped"


def test_a_java_that_is_gone() -> None:
    with pytest.raises(QueryFailed, match="Java process is gone.*Start again"), explained("Start again"):
        raise Py4JNetworkError("Answer from Java side is empty")
    with pytest.raises(ZeroDivisionError), explained("Start again"):
        raise ZeroDivisionError


def test_a_worker_hung_up_on_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (BrokenPipeError(), ZeroDivisionError()):
        try:
            raise error
        except ArithmeticError:
            Quiet.print_exc()
            assert "ZeroDivisionError" in capsys.readouterr().err
        except OSError:
            Quiet.print_exc()
            assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "url", ["kafka://a/t", "kafka://a:b/t", "kafka://a:1,b/t", "kafka://a:1/t t", "kafka://a:1/ü"]
)
def test_addresses_that_kafka_would_not_have(url: str) -> None:
    with pytest.raises(KafkaUrlError):
        KafkaUrl.parse(url)
    assert KafkaUrl.parse("kafka://[::1]:9092/t") == KafkaUrl("[::1]:9092", "t")
