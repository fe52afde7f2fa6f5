"""The commands and the Python in documents and recipes, for tests that they can be typed as they stand."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer.main

from streaming.cli.app import app

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:magnetar|make) [^`]+)`")
_REDIRECTIONS = {">", ">>", "<"}
_ENDS = {"|", "||", "&", "&&", ";"} | _REDIRECTIONS
PACKAGES = {"schemas", "sinks", "streaming"}


def parse(words: Sequence[str]) -> None:
    """Parse the words after ``magnetar`` as the command line would. Raises the error that it would show."""
    command: Any = typer.main.get_command(app)
    name, rest, parent = "magnetar", list(words), None
    while True:
        parent = command.make_context(name, rest, parent=parent)
        if not hasattr(command, "resolve_command"):
            return
        name, command, rest = command.resolve_command(parent, [*parent._protected_args, *parent.args])


def unknown_words(words: Sequence[str]) -> list[str]:
    """Of the words after ``magnetar``, the options and the first command that don't exist. Arguments may be missing."""
    command: Any = typer.main.get_command(app)
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
    """What a Markdown document's Python imports from our packages and isn't there. Raises `SyntaxError`."""
    missing = []
    for language, block in _BLOCK.findall(document.read_text()):
        for node in ast.walk(ast.parse(block)) if language == "python" else ():
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in PACKAGES:
                module = importlib.import_module(str(node.module))
                missing += [
                    f"{node.module}.{each.name}" for each in node.names if not hasattr(module, each.name)
                ]
    return missing
