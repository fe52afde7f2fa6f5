"""A failed query reports the cause in a sentence, and what to do."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from sinks.storage import RESTORE, Damaged, NotStored, plain
from streaming.kafka.url import KafkaUrl, KafkaUrlError
from streaming.spark.failure import QueryFailed, cause, explained, explanation, not_started
from streaming.spark.trigger import ClockJumped
from streaming.spark.worker_daemon import Quiet

HEAD = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Reason: Traceback (most recent call last):\n"
TAIL = "\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x\njava.lang.Error: not the cause"


IN_A_WORKER = """pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "operator.py", line 159, in apply
ValueError: partition 0, offset 0: boom"""
A_WORKER_KILLED = """py4j.protocol.Py4JJavaError: An error occurred while calling o3342.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 3 times
\tat org.apache.spark.Some: thing
Driver stacktrace:
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.sql.…'.
Caused by: java.io.EOFException"""


@pytest.mark.parametrize(
    ("story", "sentence"),
    [
        (IN_A_WORKER, "ValueError: partition 0, offset 0: boom"),
        ("ValueError: of Python itself.", "ValueError: of Python itself"),
        (
            "sinks.kafka.ResponsesNotSent: Kafka at h:1 did not take responses.",
            "Kafka at h:1 did not take responses",
        ),
        ("sinks.dead_letters.DeadLettersNotSent: Kafka did not.", "Kafka did not"),
        (A_WORKER_KILLED, "Python worker exited unexpectedly (crashed)"),
    ],
)
def test_the_cause(story: str, sentence: str) -> None:
    assert cause(HEAD + story + TAIL) == sentence


def test_s3_that_is_away_or_refuses() -> None:
    """Texts of pyarrow 26, from a task and from the query's own process."""
    asked = "When reading information for key 'x/_lock' in bucket 'b': AWS Error {} during HeadObject operation: {}"
    connect = "curlCode: 7, Could not connect to server; Details: Failed to connect to 127.0.0.1:9: Could not connect to server"
    away, refused = (
        asked.format("NETWORK_CONNECTION", connect),
        asked.format("ACCESS_DENIED", "No response body."),
    )
    why = "HeadObject: NETWORK_CONNECTION, Failed to connect to 127.0.0.1:9: Could not connect to server"
    assert explanation(f"{HEAD}OSError: {away}{TAIL}", "Again") == f"S3 did not answer ({why}). Again"
    with pytest.raises(QueryFailed) as failed, explained("Again"):
        raise OSError(refused)
    assert str(failed.value) == "S3 refused a request (HeadObject: ACCESS_DENIED, No response body). Again"
    sdk = "software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: Connect to 127.0.0.1:9 failed"
    of_spark = f"getFileStatus on s3a://b/checkpoint/offsets/3: {sdk} (SDK Attempt Count: 6):    {sdk} (SDK Attempt Count: 6)"
    assert explanation(of_spark + TAIL, "Again") == (
        "S3 failed for so long that the query gave up (getFileStatus on s3a://b/checkpoint/offsets/3: Unable to execute HTTP "
        "request: Connect to 127.0.0.1:9 failed). Again"
    )
    written = f"NotStored: s3://b/x could not be written: {plain(OSError(away))}"
    assert (
        explanation(f"{HEAD}{written}{TAIL}", "Again")
        == f"s3://b/x could not be written: S3 did not answer ({why}). Again"
    )


ANEW = "give the query a new checkpoint and a new store, and it starts with what Kafka has"
ROOM = (
    "Free some space, and restart the query with the same checkpoint: nothing is lost, it repeats the "
    "micro-batch"
)

RECORDED = {
    "delete-records": "Kafka deleted records before they were read, of offsets [191, 266) of partition commands-2. Nothing "
    f"is skipped silently: {ANEW}. Then let the topic keep records longer than the query may be down",
    "topic-again-short": "Records up to offset 206 of Kafka's partition commands-0 were read, and now it ends at 40: the "
    f"topic was deleted and recreated, or Kafka lost records. Nothing is skipped silently: {ANEW}",
    "topic-fewer-partitions": "Kafka has no partitions commands-2 any more: the topic was deleted, or recreated with "
    f"fewer. Nothing is skipped silently: {ANEW}",
    "offset-empty": f"The checkpoint's file /data/checkpoint/offsets/13 is damaged. {RESTORE}",
    "metadata-missing": f"The checkpoint's file /data/checkpoint/metadata is missing. {RESTORE}",
    "state-missing": f"The checkpoint's folder 'state' is empty or missing. {RESTORE}",
    "delta-missing-last": f"The checkpoint's file /data/checkpoint/state/0/0/14.delta is missing or damaged. {RESTORE}",
    "delta-half-last": f"A file in the checkpoint's folder 'state' is damaged. {RESTORE}",
    "delta-empty-last": f"A file in the checkpoint's folder 'state' is damaged. {RESTORE}",
    "checkpoint-full": "A disk is full: the checkpoint's, or that of temporary files (No space left on device). "
    + ROOM,
    "kafka-away": "Kafka did not answer for so long that the query gave up (Timed out waiting for a node assignment. "
    "Call: listNodes). Start again",
}
"""By file in ``failures``: the text of the exception that Spark raised after this fault, without the lines that start with
``at`` and without the end."""


@pytest.mark.feature("J2")
@pytest.mark.parametrize("fault", RECORDED)
def test_what_spark_says_of_a_fault(fault: str) -> None:
    text = Path(__file__).with_name("failures").joinpath(f"{fault}.txt").read_text()
    assert explanation(text, "Start again") == RECORDED[fault]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("sinks.storage.Damaged: /s/a is damaged: x. Restore it", "/s/a is damaged: x. Restore it"),
        ("sinks.storage.NotStored: /s/a could not be written: No space left on device",
         f"/s/a could not be written: No space left on device. {ROOM}"),
        ("sinks.storage.NotStored: /s/a could not be written: Permission denied",
         "/s/a could not be written: Permission denied. Start again"),
    ],
)  # fmt: skip
def test_what_the_store_says_in_a_worker(error: str, sentence: str) -> None:
    assert explanation(HEAD + IN_A_WORKER + "\n" + error + TAIL, "Start again") == sentence


def test_what_the_store_says_in_the_driver() -> None:
    with pytest.raises(QueryFailed, match="^it is damaged$"), explained("Start again"):
        raise Damaged("it is damaged")
    with pytest.raises(QueryFailed, match="^not written. Start again$"), explained("Start again"):
        raise NotStored("not written")
    with pytest.raises(QueryFailed, match="^set back$"), explained("Start again"):
        raise ClockJumped("set back")


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


def test_a_session_that_does_not_start() -> None:
    """Names the options that may be to blame, without their values, which may be secrets."""
    error = RuntimeError(
        "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.\n"
    )
    said = str(not_started(error, "spark://h:1", {"spark.driver.memory": "zz"}))
    assert said.startswith(
        "Spark did not start: [JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number. "
    )
    assert "Check --master, --conf spark.driver.memory; " in said
    assert "zz" not in said
    assert "restarted" not in said
    assert "Check Java" in str(not_started(error, None, {}))
