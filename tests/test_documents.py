"""What the documents tell a reader to type or to open is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands import parse, shell_commands

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*.md")])
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")

named = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@named
def test_commands_can_be_typed(document: Path) -> None:
    for words in shell_commands(document):
        program, *rest = (word for word in words if "=" not in word or word.startswith("-"))
        if program.rpartition("/")[2] == "magnetar":
            parse(rest)
        elif program == "make":
            assert {word for word in rest if not word.startswith("-")} <= TARGETS, words


@named
def test_links_lead_to_files(document: Path) -> None:
    missing = [link for link in _LINK.findall(document.read_text()) if not (document.parent / link).exists()]
    assert missing == []


def test_documents_name_commands() -> None:
    """The search finds them."""
    found = [words for document in DOCUMENTS for words in shell_commands(document)]
    assert len([words for words in found if words[0] == "magnetar"]) > 15
    assert len([words for words in found if words[0] == "make"]) > 8


@pytest.mark.parametrize(
    "words", [["replay"], ["run", "--ingres", "x"], ["nonsense"], ["kafka", "up", "--port", "x"]]
)
def test_a_command_that_is_wrong(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)missing|no such|valid integer"):
        parse(words)
