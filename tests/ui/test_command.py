"""`magnetar ui` as a process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.e2e.live import MAGNETAR
from tests.ui.log import QUOTA


def test_from_its_start_to_its_end(replayed: Path, tmp_path: Path) -> None:
    # An application's own packages, in the folder at hand, are not those of Magnetar.
    for name in ("schemas", "streaming"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not this one')")
    command = [str(MAGNETAR), "ui", str(replayed), "--listen", "127.0.0.1:0"]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        said = running.stderr.readline()
        found = re.fullmatch(r"magnetar: the page is at (http://127.0.0.1:(\d+)/); Ctrl-C stops it\n", said)
        assert found is not None, said

        def get(path: str) -> Any:
            with urllib.request.urlopen(f"{found[1]}{path}", timeout=60) as answer:
                return answer.read()

        assert b"<script>" in get("")
        assert json.loads(get("api/overview"))["status"]["kind"] == "replay"
        question = urlencode({"topic": QUOTA, "producer": "web", "sequence_id": 3})
        assert json.loads(get(f"api/explain?{question}"))[0]["fate"] == "stored"
        second = [*command[:-1], f"127.0.0.1:{found[2]}"]
        other = subprocess.run(second, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert other.returncode == 2
        assert re.fullmatch(r"magnetar: --listen 127.0.0.1:\d+: .*in use\n", other.stderr), other.stderr
        running.send_signal(signal.SIGTERM)
        assert running.communicate(timeout=60)[1] == "magnetar: stopped\n"
        assert running.returncode == 0
    finally:
        running.kill()
        running.wait()
