"""What `make release` builds, without the tools that it installs."""

from __future__ import annotations

import hashlib
import re
import tarfile
from pathlib import Path

import pytest

from streaming import __version__
from tools import release

ROOT = Path(__file__).parents[2]

CHANGELOG = """# Changelog

## [Unreleased]

{unreleased}
## [1.1.0] - 2026-11-22

### Added

- Something.

## [1.0.0] - 2026-01-01

- All.
"""


def test_the_notes_are_the_entry_of_the_version() -> None:
    assert release.notes(CHANGELOG.format(unreleased=""), "1.1.0") == "### Added\n\n- Something."
    assert release.notes(CHANGELOG.format(unreleased=""), "1.0.0") == "- All."


@pytest.mark.parametrize(
    ("version", "unreleased", "why"),
    [("1.2.0", "", "no entry"), ("1.1.0", "- More.\n", "unreleased changes"), ("1x1.0", "", "no entry")],
)
def test_without_a_whole_entry_nothing_is_built(
    version: str, unreleased: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(release.NotReady, match=why):
        release.notes(CHANGELOG.format(unreleased=unreleased), version)


def test_what_is_not_committed_is_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "notes", lambda *_, draft: "")
    monkeypatch.setattr(
        release, "_output", lambda *command, **_: " M README.md\n" if "status" in command else ""
    )
    with pytest.raises(release.NotReady, match=r"README\.md\ncommit them"):
        release.build(tmp_path / "dist", tmp_path, draft=False)
    assert not (tmp_path / "dist").exists()


def test_an_entry_without_a_date_does_not_count() -> None:
    text = CHANGELOG.format(unreleased="").replace(" - 2026-11-22", "")
    with pytest.raises(release.NotReady, match="no entry"):
        release.notes(text, "1.1.0")


def test_the_notes_of_a_draft_are_what_is_unreleased() -> None:
    assert release.notes(CHANGELOG.format(unreleased="- More.\n"), "1.1.0", draft=True) == "- More."
    assert release.notes((ROOT / "CHANGELOG.md").read_text(), __version__, draft=True)


def test_the_image_context_has_what_the_dockerfile_copies_and_is_reproducible(tmp_path: Path) -> None:
    files = release.context_files(ROOT / "deploy/Dockerfile")
    for name in ("one", "two"):
        release.write_context(files[::-1] if name == "two" else files, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as archive:
        names = set(archive.getnames())
    assert {"deploy/Dockerfile", "pyproject.toml", "requirements.lock", "streaming/__init__.py"} <= names
    assert {"streaming/runtime/spark-kafka.jars", "schemas/command.schema.json"} <= names
    assert not {name for name in names if name.startswith(("tests/", ".", "docs/"))}


def test_the_bill_names_every_jar_with_its_hash() -> None:
    import pyspark

    found = list(release.jar_components())
    assert len({each["bom-ref"] for each in found}) == len(found) > 300
    assert all(re.fullmatch("[0-9a-f]{64}", each["hashes"][0]["content"]) for each in found)
    purls = {each["purl"] for each in found if "purl" in each}
    assert "pkg:maven/org.apache.kafka/kafka_2.13@4.3.1" in purls
    assert any(purl.startswith("pkg:maven/org.apache.spark/spark-core_2.13@4.2.") for purl in purls)
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    (ivy,) = (each for each in found if each["name"] == "ivy")
    assert ivy["hashes"][0]["content"] == hashlib.sha256(jar.read_bytes()).hexdigest()
