"""The distribution works outside the repository: a wheel built from the source distribution, in another folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

from streaming import __version__
from streaming.traces import RECORDED

ROOT = Path(__file__).parents[2]
PACKAGES = ("magnetar", "schemas", "sinks", "streaming")
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "demo", "*.egg-info")


class Built(NamedTuple):
    """A source distribution, the wheel made of it, and the folder in which that is installed."""

    sdist: Path
    wheel: Path
    site: Path


def shipped() -> set[str]:
    """Every file of the packages, and the pytest plugin, by their paths in the repository."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*"))
    found = {
        str(file.relative_to(ROOT)) for file in files if file.is_file() and "__pycache__" not in file.parts
    }
    return {*found, "pytest_magnetar.py"}


def run(*command: object, cwd: Path, **variables: str) -> str:
    """The standard output of a command that succeeds."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("distribution")
    shutil.copytree(ROOT, folder / "repository", ignore=LEFT_OUT)
    make = "import sys, setuptools.build_meta; setuptools.build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", make, folder, cwd=folder / "repository")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    source = folder / sdist.name.removesuffix(".tar.gz")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    # The dependencies are those of this interpreter: Spark alone is 0.4 GB.
    run(*pip, "install", "--no-deps", "--no-compile", "--target", folder / "site", wheel, cwd=folder)
    return Built(sdist, wheel, folder / "site")


def magnetar(built: Built, cwd: Path, *arguments: object) -> str:
    """Run the installed command in a folder from which the repository can't be seen."""
    return run(
        sys.executable, built.site / "bin" / "magnetar", *arguments, cwd=cwd, PYTHONPATH=str(built.site)
    )


def test_the_wheel_has_the_packages_whole_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    info = f"magnetar-{__version__}.dist-info"
    assert {name for name in names if not name.startswith(info)} == shipped()
    assert {f"{info}/METADATA", f"{info}/entry_points.txt", f"{info}/licenses/LICENSE"} <= names


def test_the_source_distribution(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if "." in name}
    assert shipped() <= names
    assert {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"} <= names
    assert not {name.partition("/")[0] for name in names} & {"tests", "tools", "bench"}


def test_the_metadata(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        text = archive.read(f"magnetar-{__version__}.dist-info/METADATA").decode()
    found = Parser().parsestr(text)
    assert found["Version"] == __version__
    assert found["License-Expression"] == "Apache-2.0"
    assert str(found.get_payload()).strip() == (ROOT / "README.md").read_text().strip()
    urls = dict(url.split(", ", 1) for url in found.get_all("Project-URL", []))
    assert urls.keys() == {"Homepage", "Repository", "Issues", "Changelog"}
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_modules_come_from_the_wheel(built: Built, tmp_path: Path) -> None:
    names = ", ".join(PACKAGES)
    code = f"import json, {names}; print(json.dumps([each.__file__ for each in ({names})]))"
    files = json.loads(run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(built.site)))
    assert [*map(Path, files)] == [built.site / package / "__init__.py" for package in PACKAGES]
    assert magnetar(built, tmp_path, "--version") == f"magnetar {__version__}\n"


def test_conform(built: Built, tmp_path: Path) -> None:
    recorded = built.site / "streaming" / "traces" / "recorded"
    assert len([*recorded.iterdir()]) == len([*(ROOT / "streaming/traces/recorded").iterdir()]) > 60
    names = ("ack_holes", "dedup_restart", "sub_keyshared_join")
    said = magnetar(built, tmp_path, "conform", *(recorded / f"{name}.jsonl" for name in names))
    assert said.endswith("conform: 3 of 3 traces equal\n")


def test_a_replay_without_spark(built: Built, tmp_path: Path) -> None:
    trace = built.site / "streaming" / "traces" / "recorded" / "ack_holes.jsonl"
    magnetar(built, tmp_path, "import", trace, "--out", "log.jsonl")
    found = json.loads(
        magnetar(built, tmp_path, "replay", "log.jsonl", "--out", "out", "--no-spark", "--json")
    )
    assert found["rows"]["SEND_RECEIPT"] > 0
    assert "QUARANTINED" not in found["rows"]
    assert {each.name for each in tmp_path.iterdir()} == {"log.jsonl", "out"}


def test_the_front_door(built: Built, tmp_path: Path) -> None:
    code = (
        "import magnetar\n"
        "magnetar.replay('log.jsonl', 'out')\n"
        "print(magnetar.read_rows('out', 'SEND_RECEIPT').num_rows, all(getattr(magnetar, name) for name in magnetar.__all__))\n"
    )
    (tmp_path / "log.jsonl").write_text(
        '{"topic": "persistent://a/b/t", "producer": "p", "sequence_id": 0, "payload": "x"}\n'
    )
    said = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(built.site))
    assert said == "1 True\n"
    assert (built.site / "magnetar" / "py.typed").exists()


@pytest.mark.slow
@pytest.mark.spark
def test_the_demonstration(built: Built, tmp_path: Path) -> None:
    """With Spark, whose workers import from the wheel, too; and all traces."""
    said = magnetar(built, tmp_path, "demo")
    assert "were trimmed" in said
    count = len(list(RECORDED.glob("*.jsonl")))
    assert f"{count} of {count} traces equal" in magnetar(built, tmp_path, "conform")
