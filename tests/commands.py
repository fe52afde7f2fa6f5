"""The commands and the Python in documents and recipes, for tests that they can be typed as they stand."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

import magnetar
from streaming.cli.app import app

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DURATION = re.compile(r"\d+\.\d s\b")
_LEFT_OUT = "…"
_INLINE = re.compile(r"`((?:magnetar|make) [^`]+)`")
_REDIRECTIONS = {">", ">>", "<"}
_ENDS = {"|", "||", "&", "&&", ";"} | _REDIRECTIONS
PACKAGES = {"magnetar", "schemas", "sinks", "streaming"}


class Step(NamedTuple):
    """A fenced block of a document: a script, and the output that is shown below it, if any."""

    language: str
    script: str
    output: str | None


def steps(text: str) -> Iterator[Step]:
    """The blocks of a Markdown document that are no output."""
    blocks = _FENCE.findall(text)
    for (language, body), (after, output) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "text":
            yield Step(language, body, output if after == "text" else None)


def shows(expected: str, said: str) -> bool:
    """Whether output is as a document shows it. A line with an ellipsis is for any lines, durations may differ."""
    lines = [
        "(?:.*\n)*" if line == _LEFT_OUT else re.escape(_DURATION.sub("0.0 s", line)) + r" *\n"
        for line in expected.splitlines()
    ]
    return re.fullmatch("".join(lines), _DURATION.sub("0.0 s", said)) is not None


@cache
def _magnetar() -> Any:
    return typer.main.get_command(app)


def parse(words: Sequence[str]) -> None:
    """Parse the words after ``magnetar`` as the command line would. Raises the error that it would show."""
    command = _magnetar()
    name, rest, parent = "magnetar", list(words), None
    while True:
        parent = command.make_context(name, rest, parent=parent)
        if not hasattr(command, "resolve_command"):
            return
        name, command, rest = command.resolve_command(parent, [*parent._protected_args, *parent.args])


def unknown_words(words: Sequence[str]) -> list[str]:
    """Of the words after ``magnetar``, the options and the first command that don't exist. Arguments may be missing."""
    command = _magnetar()
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return [rest[0]]
        command = command.commands[rest.pop(0)]
    known = {"--help", *(option for each in command.params for option in (*each.opts, *each.secondary_opts))}
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]


def shell_commands(document: Path) -> Iterator[list[str]]:
    """The commands in a Markdown document's shell blocks, each as its words up to a pipe or a redirection."""
    for language, block in _BLOCK.findall(document.read_text()):
        if language not in ("sh", "bash"):
            continue
        for line in re.sub(
            r"<<'(\w+)'\n.*?^\1$", "", block.replace("\\\n", " "), flags=re.M | re.S
        ).splitlines():
            words: list[str] = []
            for word in [*shlex.split(line, comments=True), ";"]:
                if word not in _ENDS:
                    words.append(word)
                    continue
                if words:
                    yield words
                words = []
                if word in _REDIRECTIONS:
                    break


def inline_commands(document: Path) -> Iterator[list[str]]:
    """The commands in a Markdown document's text, as words. They may lack arguments."""
    for found in _INLINE.findall(document.read_text()):
        yield found.split()


def missing_names(document: Path) -> list[str]:
    """What a Markdown document's Python uses of our packages and isn't public: all that is not in `magnetar`. Raises `SyntaxError`."""
    missing = []
    for language, block in _BLOCK.findall(document.read_text()):
        for node in ast.walk(ast.parse(block)) if language == "python" else ():
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in PACKAGES:
                known = magnetar.__all__ if node.module == "magnetar" else ()
                missing += [f"{node.module}.{each.name}" for each in node.names if each.name not in known]
            elif isinstance(node, ast.Import):
                missing += [
                    each.name for each in node.names if each.name.partition(".")[0] in PACKAGES - {"magnetar"}
                ]
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "magnetar"
                and node.attr not in magnetar.__all__
            ):
                missing.append(f"magnetar.{node.attr}")
    return missing
