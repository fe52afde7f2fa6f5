"""The rules in docs/rules: what cites them finds them, and each one is shown by a test or by a trace of a real broker."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RULES = ROOT / "docs" / "rules"
PAGES = sorted(path.name for path in RULES.glob("*.md") if path.name not in ("index.md", "upgrades.md"))
RECORDED = ROOT / "streaming" / "traces" / "recorded"

_FOLDERS = ("streaming", "sinks", "schemas", "tests", "tools", "deploy", "bench", "docs")
_CITATION = re.compile(r"docs/rules/([\w-]+\.md)((?:,?\s+(?:and\s+)?§\d+(?:\.\d+)*(?:–§?\d+)?)*)")
_SECTION = re.compile(r"^## (\d+)\. (.+)$", re.MULTILINE)
_SHOWN = re.compile(r"^\*\*Shown by\*\*(.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)*)`")
_TRACE = re.compile(r"`(?:trace )?([a-z0-9_]+)`")
_ELSEWHERE = re.compile(
    r"(?<!docs/rules/)(?<![\w/(-])(?:spec/)?(?:dedup|cursor|ledger|producer|backlog_quota|dispatch_shared|dispatch_key_shared|client_side"
    r"|corrections|batching|ttl|subscriptions|protocol|versions)\.md\b|spec README|design decision"
)  # fmt: skip
"""Citations of texts that are not in the repository."""


def sections(page: str) -> dict[str, str]:
    """The numbered sections of a page, and what they say."""
    text = (RULES / page).read_text()
    found = list(_SECTION.finditer(text))
    ends = [*(each.start() for each in found), len(text)][1:]
    numbers = [each[1] for each in found]
    assert numbers == [str(number) for number in range(1, len(found) + 1)], f"{page}: sections {numbers}"
    return {each[1]: text[each.end() : end] for each, end in zip(found, ends, strict=True)}


def files() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in _FOLDERS:
        for suffix in ("py", "md", "toml", "yaml"):
            found += (ROOT / folder).rglob(f"*.{suffix}")
    return [path for path in found if "node_modules" not in path.parts and path != Path(__file__)]


@cache
def defined(path: Path) -> frozenset[str]:
    """The functions, classes and methods of a module, as pytest names them."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(f"::{node.name}")
        if isinstance(node, ast.ClassDef):
            found |= {
                f"::{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)
            }
    return frozenset(found)


def shown_by(page: str, number: str, text: str) -> list[str]:
    """What shows a section: tests and traces that exist. Raises AssertionError for one that doesn't."""
    found = []
    for each in _SHOWN.findall(text):
        for path, name in _TEST.findall(each):
            assert (ROOT / path).is_file(), f"{page} §{number}: no {path}"
            assert not name or name in defined(ROOT / path), f"{page} §{number}: no {path}{name}"
            found.append(path + name)
        for trace in _TRACE.findall(re.sub(_TEST, "", each)):
            assert (RECORDED / f"{trace}.jsonl").is_file(), f"{page} §{number}: no trace {trace}"
            found.append(trace)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_each_section_is_shown(page: str) -> None:
    found = sections(page)
    assert found
    bare = [number for number, text in found.items() if not shown_by(page, number, text)]
    assert not bare, f"{page}: sections {bare} name no test and no trace that shows them"


_BY_SECTION = re.compile(r"^Pulsar's classes by section: (.+?)\.$", re.MULTILINE | re.DOTALL)
_OF_SECTIONS = re.compile(r"((?:§[\d–§]+(?:, )?)+)([^§]*)")
_NUMBERS = re.compile(r"§(\d+)(?:–§(\d+))?")
_CLASS = re.compile(r"`[A-Z]\w*[a-z]\w*`|Magnetar alone")
_WITHOUT_CLASSES = ("articles.md", "clients.md", "versions.md")


@pytest.mark.parametrize("page", [page for page in PAGES if page not in _WITHOUT_CLASSES])
def test_the_head_names_the_class_of_each_section(page: str) -> None:
    """Where to look in Pulsar for a rule. What only orders rules, or applies them to a case, has none."""
    text = (RULES / page).read_text()
    listed = _BY_SECTION.search(text[: text.index("\n## ")])
    assert listed is not None, f"{page}: no list of classes by section"
    named = {
        str(number)
        for places, classes in _OF_SECTIONS.findall(listed[1].replace("\n", " "))
        if _CLASS.search(classes)
        for first, last in _NUMBERS.findall(places)
        for number in range(int(first), int(last or first) + 1)
    }
    rules = {
        number for number, title in _SECTION.findall(text) if title not in ("Order of events", "Worked cases")
    }
    assert named == rules


def test_each_citation_resolves() -> None:
    wrong, cited = [], 0
    for path in files():
        text = re.sub(r"\n\s*(?:#|\*)?\s*", " ", path.read_text())
        for page, numbers in _CITATION.findall(text):
            cited += 1
            known = sections(page) if (RULES / page).is_file() else {}
            wrong += [
                f"{path.relative_to(ROOT)}: docs/rules/{page} §{each}"
                for each in re.findall(r"§(\d+)", numbers) or ([] if (RULES / page).is_file() else ["…"])
                if each not in known
            ]
    assert not wrong, "\n".join(wrong)
    assert cited > 100


def test_each_short_citation_resolves() -> None:
    """``§5`` alone is of the page that the module's docstring names."""
    wrong, cited = [], 0
    for path in (ROOT / "streaming").rglob("*.py"):
        text = re.sub(r"\n\s*(?:#|\*)?\s*", " ", path.read_text())
        short = re.findall(r"(?<!RFC 9112 )§(\d+)", _CITATION.sub("", text))
        if not short:
            continue
        cited += len(short)
        docstring = re.sub(r"\s+", " ", ast.get_docstring(ast.parse(path.read_text())) or "")
        pages = {page for page, _ in _CITATION.findall(docstring)}
        known = sections(*pages) if len(pages) == 1 else {}
        wrong += [f"{path.relative_to(ROOT)}: §{each}, of {pages}" for each in short if each not in known]
    assert not wrong, "\n".join(wrong)
    assert cited > 15


def test_nothing_cites_what_is_not_here() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files()
        if RULES not in path.parents
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _ELSEWHERE.search(line)
    ]
    assert not found, "\n".join(found)
