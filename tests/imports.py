"""The imports of a tree of Python files, for a test of the architecture.

Every import counts, also those inside functions and under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

DYNAMIC = frozenset(
    {"__import__", "eval", "exec", "exec_module", "find_spec", "import_module", "run_module", "run_path"}
)
"""Functions that can load a module without an import statement."""


class Import(NamedTuple):
    """What `module` imports in a line: ``a.b.c`` for ``import a.b.c`` as well as for ``from a.b import c``."""

    module: str
    name: str
    line: int


class Tree:
    """The Python files of some top-level packages in a folder, by module name."""

    def __init__(self, root: Path, packages: Iterable[str]) -> None:
        self.files: dict[str, Path] = {}
        for package in packages:
            for path in sorted((root / package).rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                self.files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self._parsed = {module: ast.parse(path.read_text()) for module, path in self.files.items()}

    def imports(self) -> Iterator[Import]:
        """All import statements."""
        for module, parsed in self._parsed.items():
            for node in ast.walk(parsed):
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        yield Import(module, alias.name, node.lineno)
                elif isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        yield Import(module, f"{self._source(module, node)}.{alias.name}", node.lineno)

    def dynamic_imports(self) -> Iterator[Import]:
        """All uses of a function in `DYNAMIC`, by whatever route it is reached."""
        for module, parsed in self._parsed.items():
            for node in ast.walk(parsed):
                if isinstance(node, ast.Attribute) and node.attr in DYNAMIC:
                    yield Import(module, node.attr, node.lineno)
                elif isinstance(node, ast.Name) and node.id in DYNAMIC:
                    yield Import(module, node.id, node.lineno)
                elif isinstance(node, ast.alias) and node.name in DYNAMIC:
                    yield Import(module, node.name, node.lineno)

    def builtins(self, module: str) -> set[str]:
        """The built-in names that a module uses, and names such as ``__loader__`` that no file defines."""
        top = symtable.symtable(self.files[module].read_text(), module, "exec")
        own = {
            symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()
        }
        used: set[str] = set()
        scopes = [top]
        while scopes:
            scope = scopes.pop()
            scopes += scope.get_children()
            # At module level a name is global unless something there binds it.
            used |= {
                symbol.get_name()
                for symbol in scope.get_symbols()
                if symbol.is_referenced() and (symbol.is_global() or scope is top)
            }
        return {name for name in used - own if hasattr(builtins, name) or name.startswith("__")}

    def file_of(self, name: str) -> str | None:
        """The module of the tree that an imported name is or is in."""
        while name not in self.files:
            name, dot, _ = name.rpartition(".")
            if not dot:
                return None
        return name

    def circles(self) -> list[list[str]]:
        """The groups of files that import each other."""
        edges: dict[str, set[str]] = {module: set() for module in self.files}
        for each in self.imports():
            target = self.file_of(each.name)
            if target is None:
                continue
            edges[each.module].add(target)
            # A package's __init__ runs before what is inside it, unless the importer is inside, too.
            while target := target.rpartition(".")[0]:
                if target in self.files and not f"{each.module}.".startswith(f"{target}."):
                    edges[each.module].add(target)
        return circles({module: targets - {module} for module, targets in edges.items()})

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        is_package = self.files[module].name == "__init__.py"
        above = parts[: len(parts) - node.level + is_package]
        return ".".join([*above, *([node.module] if node.module else [])])


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of a graph with more than one node, sorted (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for target in edges[node]:
            if target not in number:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], number[target])
        if lowest[node] == number[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for node in edges:
        if node not in number:
            visit(node)
    return sorted(found)
