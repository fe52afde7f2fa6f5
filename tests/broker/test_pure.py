"""The core is pure: importing it brings in no Spark, no clock, no files, no sockets, no randomness."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import streaming.broker

FOLDER = Path(streaming.broker.__file__).parent
FORBIDDEN = {
    "asyncio", "datetime", "io", "os", "pandas", "pathlib", "pyarrow", "pyspark", "random", "secrets", "shutil", "socket",
    "subprocess", "tempfile", "threading", "time", "uuid", "sinks", "numpy", "kafka",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_imports_nothing_impure(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {
        node.module.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert not imported & FORBIDDEN
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print", "input", "hash", "id_of", "eval", "exec", "__import__"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_is_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_the_core_comes_without_spark() -> None:
    code = "import sys, streaming.broker.broker; print(sorted({'pyspark', 'pandas', 'pyarrow'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
