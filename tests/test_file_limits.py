"""A limit on the size of files is a sentence, wherever a command meets it first."""

import json
import resource
import subprocess
import sys
from errno import EIO, EMFILE
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from streaming.cli.app import app
from streaming.cli.errors import expected_errors

TTL = {"command": "ADMIN", "method": "POST", "path": "/namespaces/shop/day/messageTTL", "body": 30}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    message = {"timestamp": 0, "topic": "persistent://shop/day/t", "producer": "p"}
    lines = (json.dumps(message | {"sequence_id": n, "payload": f"m{n}" * 200}) for n in range(300))
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    (tmp_path / "ttl.jsonl").write_text(json.dumps(TTL))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        (["whatif", "log.jsonl", "--policies", "ttl.jsonl", "--out", "out"], 1 << 10),
        (["replay", "log.jsonl", "--out", "out", "--no-spark"], 1 << 10),
        (["replay", "log.jsonl", "--out", "out", "--no-spark"], 1),
        (["advise", "log.jsonl", "--out", "out.yaml"], 1),
    ],
)
def test_a_limit_on_the_size_of_files(folder: Path, arguments: list[str], limit: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from streaming.cli import main; main()", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert "\u2502" not in done.stderr


@pytest.mark.parametrize("number", [EIO, EMFILE])
def test_an_error_without_a_file(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """As Arrow raises it."""
    with pytest.raises(typer.Exit), expected_errors():
        raise OSError(number, f"Error writing bytes to file. Detail: [errno {number}] it is so")
    assert "Detail" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["inspect a", "ui a", "compact a", "state export a --out x.jsonl"])
def test_links_in_a_circle(arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    ran = CliRunner().invoke(app, arguments.split())
    assert ran.exit_code in (1, 2)
    assert f"{tmp_path}/a" in ran.stderr
    assert "Too many levels of symbolic links" in ran.stderr
