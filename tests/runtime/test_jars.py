from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from streaming.runtime import jars
from streaming.runtime.cache import cache_dir


def example(name: str, version: str) -> jars.Jar:
    """A jar whose contents are its coordinates."""
    coordinates = f"org.example:{name}:{version}"
    return jars.Jar("org.example", name, version, hashlib.sha256(coordinates.encode()).hexdigest())


ONE = example("one", "1.0")
TWO = example("two", "2.0")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Maven repository of this test's own, in a folder, with one jar in it."""
    root = tmp_path / "maven"
    publish(root, ONE)
    monkeypatch.setenv(jars.MAVEN_URL_VARIABLE, root.as_uri())
    return root


def publish(root: Path, jar: jars.Jar) -> Path:
    file = root / jar.group.replace(".", "/") / jar.name / jar.version / jar.file
    file.parent.mkdir(parents=True)
    file.write_text(jar.coordinates)
    return file


def test_fetched_once(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (jar,) = jars.fetch("some", [ONE])
    assert jar.name == "one-1.0.jar"
    assert jar.read_text() == ONE.coordinates
    monkeypatch.setattr(jars, "_fetch_into", None)  # calling it would fail
    assert jars.fetch("some", [ONE]) == [jar]


def test_all_or_nothing_and_the_error_says_what_is_missing(repository: Path, tmp_path: Path) -> None:
    both = [ONE, TWO]
    with pytest.raises(
        jars.JarsUnavailableError, match=r"could not fetch two from file:.*MAGNETAR_MAVEN_URL"
    ):
        jars.fetch("some", both)
    assert [path.suffix for path in (tmp_path / "cache/magnetar/jars").iterdir()] == [".lock"]
    publish(repository, TWO)
    assert [jar.name for jar in jars.fetch("some", both)] == ["one-1.0.jar", "two-2.0.jar"]


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.MAVEN_URL_VARIABLE, "http://127.0.0.1:1/")
    with pytest.raises(jars.JarsUnavailableError, match=r"Connection refused.*Is the network down\?"):
        jars.fetch("some", [ONE])


def test_a_damaged_cache_is_told(repository: Path) -> None:
    (jar,) = jars.fetch("some", [ONE])
    jar.unlink()
    with pytest.raises(jars.JarsUnavailableError, match="does not hold the 1 jars; delete it"):
        jars.fetch("some", [ONE])


def test_a_jar_that_was_changed_in_the_cache_is_not_used(repository: Path) -> None:
    (jar,) = jars.fetch("some", [ONE])
    jar.write_bytes(jar.read_bytes() + b"!")
    with pytest.raises(
        jars.JarsUnavailableError, match=rf"one-1.0.jar has the SHA-256 .{{64}}, not {ONE.sha256}"
    ):
        jars.fetch("some", [ONE])


def test_a_jar_that_was_changed_in_the_repository_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(tmp_path / "maven", ONE).write_text("something else")
    monkeypatch.setenv(jars.MAVEN_URL_VARIABLE, (tmp_path / "maven").as_uri())
    with pytest.raises(jars.JarsUnavailableError, match=r"has the SHA-256 .* as file:.* has it"):
        jars.fetch("some", [ONE])
    assert [path.suffix for path in (tmp_path / "cache/magnetar/jars").iterdir()] == [".lock"]


@pytest.mark.parametrize(("name", "count"), [("spark-kafka", 4), ("s3a", 36), ("kafka-broker", 46)])
def test_every_jar_is_listed_once_with_a_hash(name: str, count: int) -> None:
    listed = jars.locked(name)
    assert len({(jar.group, jar.name) for jar in listed}) == len(listed) == count
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in listed)


def test_two_at_once_fetch_once(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = jars._fetch_into

    def counted(folder: Path, wanted: Sequence[jars.Jar]) -> None:
        calls.append(folder)
        real(folder, wanted)

    monkeypatch.setattr(jars, "_fetch_into", counted)
    # Threads lock each other out just as processes do: each opens the lock file for itself.
    threads = [threading.Thread(target=jars.fetch, args=("some", [ONE])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(jars.fetch("some", [ONE])) == 1


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert cache_dir() == Path.home() / ".cache" / "magnetar"
