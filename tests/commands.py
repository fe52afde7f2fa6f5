"""The commands in documents and recipes, for tests that they can be typed as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer.main

from streaming.cli.app import app

_BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_REDIRECTIONS = {">", ">>", "<"}
_ENDS = {"|", "||", "&", "&&", ";"} | _REDIRECTIONS


def parse(words: Sequence[str]) -> None:
    """Parse the words after ``magnetar`` as the command line would. Raises the error that it would show."""
    command: Any = typer.main.get_command(app)
    name, rest, parent = "magnetar", list(words), None
    while True:
        parent = command.make_context(name, rest, parent=parent)
        if not hasattr(command, "resolve_command"):
            return
        name, command, rest = command.resolve_command(parent, [*parent._protected_args, *parent.args])


def shell_commands(document: Path) -> Iterator[list[str]]:
    """The commands in a Markdown document's shell blocks, each as its words up to a pipe or a redirection."""
    for block in _BLOCK.findall(document.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
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
