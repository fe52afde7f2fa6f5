"""A log of a million small records: every command answers, and its memory is in proportion to the log."""

import subprocess
import sys
from pathlib import Path

import pytest

RECORDS = 1_000_000
TOPIC = "persistent://public/default/t0"
MOST_MIB = 200 + RECORDS * 1024 // (1 << 20)
"""Of a command alone, and 1 KiB for each record, whose line has 112 bytes."""

_RUN = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-c", "from streaming.cli import main; main()", *sys.argv[1:]], input="step 5\\nquit\\n", capture_output=True, text=True)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, (done.stdout + done.stderr)[-500:])
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("million") / "log.jsonl"
    subscribe = '{"timestamp":1,"topic":"persistent://public/default/t%d","command":"SUBSCRIBE","subscription":"s","subType":"Shared","connection":"c","consumer_id":%d,"request_id":%d}\n'
    publish = '{"timestamp":%d,"topic":"persistent://public/default/t%d","producer":"p","sequence_id":%d,"payload":"x"}\n'
    with path.open("w") as file:
        file.writelines(subscribe % (number, number, number) for number in range(20))
        file.writelines(publish % (number + 1, number % 20, number) for number in range(RECORDS))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "LOG", "--no-spark", "--out", "OUT"),
        ("explain", "LOG", TOPIC, "--subscription", "s"),
        ("inspect", "LOG"),
        ("peek", "LOG", TOPIC, "s"),
        ("debug", "LOG"),
        ("whatif", "LOG", "--policies", "TTL", "--processes", "1", "--out", "OUT"),
    ],
    ids=lambda words: words[0],
)
def test_a_million_records(
    words: tuple[str, ...], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (ttl := tmp_path / "ttl.yaml").write_text("broker: {ttlDurationDefaultInSeconds: 60}")
    given = [
        {"LOG": str(log), "OUT": str(tmp_path / "out"), "TTL": str(ttl)}.get(word, word) for word in words
    ]
    ran = subprocess.run([sys.executable, "-c", _RUN, *given], capture_output=True, text=True, check=True)
    code, peak, said = ran.stdout.split(" ", 2)
    assert code == "0", said
    assert int(peak) < MOST_MIB, said
