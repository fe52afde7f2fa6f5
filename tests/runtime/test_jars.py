from __future__ import annotations

import threading
from pathlib import Path

import pytest

from streaming.runtime import jars
from streaming.runtime.cache import cache_dir

ONE = "org.example:one:1.0"
TWO = "org.example:two:2.0"


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


def publish(root: Path, coordinate: str) -> None:
    group, name, version = coordinate.split(":")
    jar = root / group.replace(".", "/") / name / version / f"{name}-{version}.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(coordinate.encode())


def test_fetched_once(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (jar,) = jars.fetch("some", ONE)
    assert jar.name == "one-1.0.jar"
    assert jar.read_bytes() == ONE.encode()
    monkeypatch.setattr(jars, "_fetch_into", None)  # calling it would fail
    assert jars.fetch("some", ONE) == [jar]


def test_all_or_nothing_and_the_error_says_what_is_missing(repository: Path, tmp_path: Path) -> None:
    both = f"{ONE}\n{TWO}"
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
        jars.fetch("some", ONE)


def test_a_damaged_cache_is_told(repository: Path) -> None:
    (jar,) = jars.fetch("some", ONE)
    jar.unlink()
    with pytest.raises(jars.JarsUnavailableError, match="holds 0 of 1 jars; delete it"):
        jars.fetch("some", ONE)


def test_two_at_once_fetch_once(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = jars._fetch_into

    def counted(folder: Path, wanted: list[tuple[str, ...]]) -> None:
        calls.append(folder)
        real(folder, wanted)

    monkeypatch.setattr(jars, "_fetch_into", counted)
    # Threads lock each other out just as processes do: each opens the lock file for itself.
    threads = [threading.Thread(target=jars.fetch, args=("some", ONE)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(jars.fetch("some", ONE)) == 1


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert cache_dir() == Path.home() / ".cache" / "magnetar"
