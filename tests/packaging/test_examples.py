"""The examples in docs/examples for other languages, against a test double as a process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.feature("K2"), pytest.mark.timeout(1200)]


def ran(language: str, tmp_path: Path, *command: str) -> str:
    """What a command in a copy of an example says. It starts the double of this interpreter."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"NOT CHECKED: the example in {language} needs {command[0]}, which is not installed")
    folder = tmp_path / language
    shutil.copytree(EXAMPLES / language, folder)
    environment = os.environ | {"MAGNETAR_DOUBLE": f"{sys.executable} -m streaming.cli.double"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_junit_extension(tmp_path: Path) -> None:
    """Maven compiles the settings of Testcontainers, too."""
    said = ran("java", tmp_path, "mvn", "-B", "test")
    tests = (EXAMPLES / "java/src/test/java/ShopTest.java").read_text().count("@Test")
    assert re.search(rf"Tests run: {tests}, Failures: 0, Errors: 0, Skipped: 0", said)
    assert (tmp_path / "java/target/test-classes/PulsarDoubleContainer.class").exists()


def test_the_go_helper(tmp_path: Path) -> None:
    said = ran("go", tmp_path, "go", "test", "-v", "./...")
    tests = re.findall(r"^func (Test\w+)\(t \*testing\.T\)", (EXAMPLES / "go/shop_test.go").read_text(), re.M)
    assert [name for name in tests if f"--- PASS: {name}" not in said] == []
    assert len(tests) > 1
