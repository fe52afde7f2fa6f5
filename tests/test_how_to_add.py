"""docs/develop/how-to-add.md names files, folders and tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "develop" / "how-to-add.md").read_text()


def test_files_and_tests_are_there() -> None:
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|md|json|jsonl|toml))(?:::(\w+))?`", PAGE))
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).is_file() or (name and f"def {name}(" not in (ROOT / file).read_text())
    ]
    assert missing == []
    assert len(named) > 35


def test_folders_are_there() -> None:
    folders = set(re.findall(r"`((?:[\w.-]+/)+)`", PAGE))
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
    assert folders
