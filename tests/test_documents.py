"""What the documents tell a reader to type or to open is there."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path

import pytest
import typer

from schemas.effects import RULES_OF_A_RUN
from tests.commands import inline_commands, missing_names, parse, shell_commands, unknown_words

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")

named = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@named
def test_commands_can_be_typed(document: Path) -> None:
    for words in shell_commands(document):
        program, *rest = dropwhile(lambda word: "=" in word, words)  # which sets a variable
        if program.rpartition("/")[2] == "magnetar":
            with suppress(typer.Exit):  # `--version` does nothing else
                parse(rest)
        elif program == "make":
            assert {word for word in rest if not word.startswith("-") and "=" not in word} <= TARGETS, words


@named
def test_commands_in_the_text_exist(document: Path) -> None:
    for program, *words in inline_commands(document):
        if program == "magnetar":
            assert unknown_words(words) == [], words
        else:
            assert words[0] in TARGETS


@named
def test_python_imports_what_is_there(document: Path) -> None:
    assert missing_names(document) == []


@named
def test_links_lead_to_files_and_headings(document: Path) -> None:
    missing = []
    for file, heading in _LINK.findall(document.read_text()):
        target = document.parent / file if file else document
        if not target.exists() or (heading and heading not in headings(target)):
            missing.append(f"{file}#{heading}")
    assert missing == []


def headings(document: Path) -> set[str]:
    """The anchors of a Markdown document's headings, as GitHub makes them, and those that it gives to other lines."""
    text = document.read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return anchors | {*re.findall(r'<a id="([^"]+)"></a>', text)}


def test_every_page_is_reachable_from_the_index() -> None:
    """Also every picture. `example.jsonl` and scenarios are linked like pages. Of docs/examples, pages link what is to be copied."""
    index = ROOT / "docs" / "index.md"
    reached, todo = {index}, [index]
    while todo:
        page = todo.pop()
        for file, _ in _LINK.findall(page.read_text()) if page.suffix == ".md" else ():
            target = (page.parent / file).resolve() if file else page
            if target.is_file() and target not in reached:
                reached.add(target)
                todo.append(target)
    pages = {path for path in (ROOT / "docs").rglob("*") if path.is_file() and "examples" not in path.parts}
    assert {str(path.relative_to(ROOT)) for path in pages - reached} == set()
    listed = {(index.parent / file).resolve() for file, _ in _LINK.findall(index.read_text())}
    rooms = ("tutorial", "guide", "operate", "reference", "develop")
    ours = {path for room in rooms for path in (ROOT / "docs" / room).glob("*.md")}
    assert {str(path.relative_to(ROOT)) for path in ours - listed if path.parent.name != "tutorial"} == set()


def test_documents_name_commands() -> None:
    """The search finds them."""
    found = [words for document in DOCUMENTS for words in shell_commands(document)]
    assert len([words for words in found if words[0] == "magnetar"]) > 15
    assert len([words for words in found if words[0] == "make"]) > 8
    assert len([words for document in DOCUMENTS for words in inline_commands(document)]) > 20


@pytest.mark.parametrize(
    "words", [["replay"], ["run", "--ingres", "x"], ["nonsense"], ["kafka", "up", "--port", "x"]]
)
def test_a_command_that_is_wrong(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)missing|no such|valid integer"):
        parse(words)


def test_words_that_do_not_exist() -> None:
    assert unknown_words(["replay", "--policies", "--policy", "x"]) == ["--policy"]
    assert unknown_words(["quarantine", "lst"]) == ["lst"]
    assert unknown_words(["quarantine"]) == []


def test_every_rule_outside_the_suites_is_documented() -> None:
    """The rules with which the code refuses records are in docs/reference/quality.md."""
    rules = {*RULES_OF_A_RUN}
    for file in [*ROOT.glob("schemas/**/*.py"), *ROOT.glob("streaming/**/*.py")]:
        rules |= {*re.findall(r"""Refused\(\s*"(\w+)\"""", file.read_text())}
        rules |= {*re.findall(r"""Quarantined\(\w+, "(\w+)\"""", file.read_text())}
    text = (ROOT / "docs" / "reference" / "quality.md").read_text()
    assert {rule for rule in rules if f"`{rule}`" not in text} == set()
    assert len(rules) > 7
