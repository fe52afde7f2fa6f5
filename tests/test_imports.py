"""The order of imports: each room imports only what it is allowed to, and no files import each other in a circle.

docs/develop/architecture.md explains the order. What is not listed here fails, wherever the import stands.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.imports import Tree

ROOT = Path(__file__).parent.parent
PACKAGES = ("magnetar", "streaming", "sinks", "schemas", "tools")


class Room(NamedTuple):
    """What a room may import besides itself and the standard library, as words."""

    rooms: str = ""
    libraries: str = ""


ROOMS = {
    "tools": Room(
        "streaming.answers streaming.jobs streaming.server streaming.traces streaming.quality streaming.log streaming.broker sinks "
        "streaming.runtime schemas streaming magnetar",
        "msgspec pyarrow pyspark pytest slipcover",
    ),
    "magnetar": Room(
        "streaming.answers.advise streaming.answers.whatif streaming.answers.explain streaming.answers.history "
        "streaming.answers.check streaming.jobs streaming.spark streaming.log streaming.broker sinks schemas streaming"
    ),
    "streaming.cli": Room(
        "streaming.ui streaming.canaries streaming.mirror streaming.record streaming.answers streaming.answers.advise streaming.answers.whatif streaming.answers.explain "
        "streaming.answers.history streaming.answers.check streaming.jobs streaming.server streaming.state streaming.spark "
        "streaming.fold streaming.quarantine streaming.traces streaming.kafka streaming.quality streaming.log "
        "streaming.metrics streaming.broker sinks streaming.runtime schemas streaming",
        "typer rich msgspec",
    ),
    "streaming.ui": Room(
        "streaming.canaries streaming.answers.whatif streaming.answers.explain streaming.answers.history streaming.fold streaming.metrics "
        "streaming.broker sinks schemas",
        "msgspec numpy pyarrow",
    ),
    "streaming.canaries": Room(
        "streaming.answers streaming.answers.whatif streaming.spark streaming.fold streaming.quality streaming.log streaming.broker sinks "
        "schemas streaming",
        "msgspec pyarrow",
    ),
    "streaming.mirror": Room(
        "streaming.record streaming.traces streaming.protocol streaming.kafka streaming.quality streaming.log streaming.broker sinks streaming.runtime schemas",
        "kafka msgspec",
    ),
    "streaming.record": Room(
        "streaming.answers.explain streaming.answers.history streaming.server streaming.traces streaming.protocol streaming.log "
        "streaming.broker sinks streaming.runtime schemas",
        "msgspec starlette",
    ),
    "streaming.answers.advise": Room(
        "streaming.answers streaming.answers.whatif streaming.jobs streaming.log streaming.broker schemas",
        "msgspec numpy pyarrow",
    ),
    "streaming.answers.whatif": Room(
        "streaming.answers streaming.answers.history streaming.jobs streaming.state streaming.spark streaming.fold streaming.quality "
        "streaming.log streaming.broker sinks schemas streaming",
        "msgspec numpy pandas pyarrow pyspark",
    ),
    "streaming.answers.explain": Room(
        "streaming.answers streaming.answers.history streaming.broker sinks schemas", "msgspec pyarrow"
    ),
    "streaming.answers.history": Room(
        "streaming.jobs streaming.state streaming.spark streaming.fold streaming.log streaming.broker sinks "
        "streaming.runtime schemas streaming",
        "msgspec numpy pyarrow pyspark",
    ),
    "streaming.answers.check": Room(
        "streaming.answers streaming.quality streaming.log streaming.broker sinks schemas", "msgspec pyarrow"
    ),
    "streaming.answers": Room("schemas"),
    "streaming.jobs": Room(
        "streaming.state streaming.spark streaming.fold streaming.traces streaming.kafka streaming.quality streaming.log "
        "streaming.metrics streaming.broker sinks streaming.runtime schemas",
        "pyarrow",
    ),
    "streaming.spark": Room(
        "streaming.fold streaming.kafka streaming.quality streaming.log streaming.metrics streaming.broker sinks schemas "
        "streaming.runtime",
        "pyspark py4j pandas pyarrow numpy",
    ),
    "streaming.server": Room(
        "streaming.fold streaming.protocol streaming.kafka streaming.quality streaming.log streaming.metrics streaming.broker "
        "sinks schemas streaming.runtime",
        "cryptography jwt kafka msgspec prometheus_client starlette uvicorn",
    ),
    "streaming.quarantine": Room(
        "streaming.kafka streaming.quality streaming.log streaming.broker sinks schemas",
        "kafka pyarrow numpy msgspec",
    ),
    "streaming.state": Room(
        "streaming.fold streaming.kafka streaming.log streaming.broker sinks schemas", "msgspec pyarrow"
    ),
    "streaming.fold": Room("streaming.quality streaming.broker sinks schemas", "msgspec pyarrow numpy"),
    "streaming.traces": Room("streaming.protocol streaming.broker sinks schemas", "msgspec"),
    "streaming.protocol": Room("streaming.broker schemas", "cramjam crc32c google msgspec re2"),
    "streaming.kafka": Room("streaming.log sinks schemas streaming.runtime", "kafka psutil pyarrow msgspec"),
    "streaming.quality": Room(
        "streaming.log sinks schemas", "great_expectations grpc pandas pyarrow numpy msgspec"
    ),
    "streaming.metrics": Room("schemas", "msgspec prometheus_client"),
    "streaming.log": Room("streaming.broker sinks schemas", "pyarrow numpy msgspec ruamel"),
    "streaming.broker": Room("schemas", "cramjam msgspec mmh3"),
    "sinks": Room("schemas", "cachetools deltalake kafka pyarrow numpy msgspec"),
    "streaming.runtime": Room("schemas", "filelock platformdirs psutil"),
    "schemas": Room("", "pyarrow msgspec"),
    "streaming": Room(),
}
"""From the top: a room imports only rooms further down."""

WINGS = [
    "admin_calls",
    "broker",
    "topics",
    "periodic_checks",
    "state",
    "authorization",
    "admin",
    "non_persistent",
    "persistent",
    "lookup",
    "topic",
    "dispatch",
    "schema",
    "subscription",
    "transactions",
    "admin_requests",
    "ledger",
    "context",
    "producer",
    "bundles",
    "rates",
    "deleted_topics",
    "policies",
    "admin_table",
    "config",
    "entries",
    "names",
    "entry_filters",
    "setting_names",
    "parameters",
    "errors",
    "position",
]
"""The core's folders and the modules beside them, from the top: each imports only what is further down."""

STANDARD_LIBRARY = {
    "streaming.broker": (
        "__future__ abc base64 bisect collections contextlib.contextmanager functools heapq itertools math operator.lt re "
        "sys.maxsize typing urllib.parse binascii.crc32 weakref.proxy zlib"
    ),
}
"""The standard library's part that a room may use, if not all of it. The core has no clock, randomness or I/O."""

BUILTINS = {
    "streaming.broker": (
        "Exception KeyError LookupError ValueError abs all any bool bytearray bytes classmethod dict enumerate float frozenset "
        "getattr int isinstance iter len list map max memoryview min next object property range reversed set setattr sorted str "
        "sum super tuple type zip"
    ),
}
"""The built-in names that a room may use, if not all of them: not open, print, id or hash."""

FINDERS = {"tools.release", "streaming.runtime.jars", "streaming.runtime.java"}
"""Modules that may ask where an installed package is (``find_spec``); that imports nothing."""

LOADERS = {"streaming.cli.minimize"}
"""Modules that load a Python file that the user names."""

FACES = {"magnetar"}
"""Modules that load what they name when it is asked for. tests/test_front_door.py compares that with their import statements."""


def room_of(module: str) -> str:
    """The room that a module is in."""
    return max((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), key=len)


def forbidden(tree: Tree) -> set[str]:
    """The imports of a tree that its rooms don't allow, each as ``module: name``."""
    found = set()
    for each in tree.imports():
        room = room_of(each.module)
        target = tree.file_of(each.name)
        if target is not None:
            allowed = room_of(target) in (room, *ROOMS[room].rooms.split())
        else:
            top = each.name.partition(".")[0]
            allowed = top in ROOMS[room].libraries.split() or _is_standard(each.name, room)
        if not allowed:
            found.add(f"{each.module}: {each.name}")
    for each in tree.dynamic_imports():
        if not (
            (each.name == "find_spec" and each.module in FINDERS)
            or (each.name == "exec_module" and each.module in LOADERS)
            or (each.name == "import_module" and each.module in FACES)
        ):
            found.add(f"{each.module}: {each.name}()")
    for module in tree.files:
        if (room := room_of(module)) in BUILTINS:
            found |= {f"{module}: {name}" for name in tree.builtins(module) - {*BUILTINS[room].split()}}
    return found


def _is_standard(name: str, room: str) -> bool:
    if room not in STANDARD_LIBRARY:
        return name.partition(".")[0] in sys.stdlib_module_names
    return any(f"{name}.".startswith(f"{allowed}.") for allowed in STANDARD_LIBRARY[room].split())


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT, PACKAGES)


def test_each_room_imports_what_it_may(tree: Tree) -> None:
    assert forbidden(tree) == set()


def test_there_is_no_circle_of_files(tree: Tree) -> None:
    assert tree.circles() == []


def test_rooms_are_in_order(tree: Tree) -> None:
    """A list that allows what is further up would allow a circle of rooms."""
    names = list(ROOMS)
    for number, (name, room) in enumerate(ROOMS.items()):
        assert set(room.rooms.split()) <= set(names[number + 1 :]), name
    assert {room_of(module) for module in tree.files} == set(ROOMS)


def test_wings_of_the_core_are_in_order(tree: Tree) -> None:
    place_of = {
        module: WINGS.index(parts[2])
        for module in tree.files
        if (parts := module.split("."))[:2] == ["streaming", "broker"] and len(parts) > 2
    }
    assert sorted(set(place_of.values())) == list(range(len(WINGS)))
    upwards = [
        f"{each.module}: {each.name}"
        for each in tree.imports()
        if (target := tree.file_of(each.name)) in place_of
        and place_of.get(each.module, -1) > place_of[target]
    ]
    assert upwards == []


def test_the_package_has_no_loose_modules() -> None:
    assert [path.name for path in sorted((ROOT / "streaming").glob("*.py"))] == ["__init__.py"]


def test_nothing_is_allowed_in_vain(tree: Tree) -> None:
    """A list that is longer than it must be lets the next wrong import pass."""
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for each in tree.imports():
        target = tree.file_of(each.name)
        used[room_of(each.module)].add(each.name.partition(".")[0] if target is None else room_of(target))
    for name, room in ROOMS.items():
        assert {*room.rooms.split(), *room.libraries.split()} <= used[name], name


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("streaming.broker.broker", {"pyspark", "pandas", "pyarrow"}),
        # the distribution magnetar-double, see tests/packaging/test_double.py for what is imported late
        (
            "streaming.cli.double",
            {"pyspark", "pandas", "pyarrow", "numpy", "kafka", "typer", "great_expectations"},
        ),
        # what starts within a second; `pyarrow.dataset` imports pandas
        (
            "streaming.jobs.replay, streaming.answers.explain, streaming.answers.whatif, streaming.server.server",
            {"pyspark", "pandas"},
        ),
    ],
)
def test_what_comes_without_heavy_modules(modules: str, heavy: set[str]) -> None:
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# -- the test itself


def made(folder: Path, files: dict[str, str]) -> Tree:
    """A tree of files, by path without the ending."""
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(folder, PACKAGES)


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import sys",
        "from sys import modules",
        "from urllib import request",
        "import os.path",
        "import numpy as np",
        "def f():\n    import random",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import datetime",
        "from streaming import log",
        "from streaming.log import x",
        "from ..log.x import y",
        "print(1)",
        "def f(x):\n    return [hash(y) for y in x]",
        "key = id",
        "class A:\n    def f(self):\n        return open('x')",
        "__builtins__['open']",
        "def f(print): pass\nprint(1)",
    ],
)
def test_the_core_may_not(tmp_path: Path, text: str) -> None:
    assert forbidden(
        made(tmp_path, {"streaming/broker/a": text, "streaming/log/x": "", "streaming/log/__init__": ""})
    )


@pytest.mark.parametrize(
    "text",
    [
        "import base64\nfrom sys import maxsize\nfrom urllib.parse import unquote\nfrom collections.abc import Callable",
        "import msgspec.json\nfrom schemas.commands import Send\nfrom streaming.broker import b\nfrom . import b",
        "class A:\n    id: int\n    def open(self, hash): return hash + sum(x for x in [hash])",
        "def print(x): pass\nprint(1)",
    ],
)
def test_the_core_may(tmp_path: Path, text: str) -> None:
    files = {"streaming/broker/a": text, "streaming/broker/b": "", "schemas/commands": ""}
    assert forbidden(made(tmp_path, files)) == set()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("sinks/a", "from streaming.kafka.config import KafkaConfig"),
        ("streaming/kafka/a", "import pyspark"),
        ("streaming/kafka/a", "def f():\n    from streaming.spark import failure"),
        ("streaming/log/a", "from streaming.kafka import produce"),
        ("streaming/traces/a", "import importlib\nimportlib.import_module('pyspark')"),
        ("streaming/traces/a", "from importlib import import_module as load"),
        ("streaming/traces/a", "__import__('pyspark')"),
        ("streaming/jobs/run", "from streaming.cli.app import app"),
        ("schemas/a", "import sinks"),
        ("tools/a", "from tests.imports import Tree"),
    ],
)
def test_a_room_may_not(tmp_path: Path, file: str, text: str) -> None:
    others = dict.fromkeys(("streaming/kafka/config", "streaming/kafka/produce", "streaming/spark/failure",
                            "streaming/cli/app", "sinks/__init__"), "")  # fmt: skip
    assert forbidden(made(tmp_path, others | {file: text}))


def test_circles_are_found(tmp_path: Path) -> None:
    tree = made(
        tmp_path,
        {
            "sinks/a": "from sinks import b",
            "sinks/b": "def f():\n    from sinks.c import x",
            "sinks/c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import sinks.a",
            "sinks/d": "import sinks.a",
            "schemas/__init__": "from schemas.one import One",
            "schemas/one": "from sinks.other import x",
            "sinks/other": "from schemas import two",
            "schemas/two": "",
        },
    )
    assert tree.circles() == [["schemas", "schemas.one", "sinks.other"], ["sinks.a", "sinks.b", "sinks.c"]]


def test_a_package_that_hands_names_on_is_no_circle(tmp_path: Path) -> None:
    tree = made(
        tmp_path,
        {
            "sinks/__init__": "from sinks.a import A",
            "sinks/a": "from sinks.b import B",
            "sinks/b": "import re",
            "tools/x": "from sinks import A\nfrom sinks.b import B",
        },
    )
    assert tree.circles() == []


def test_a_type_name_has_one_meaning() -> None:
    """Names that begin with an underscore are a module's own. A few of Pulsar's stand for a command and for what it is about."""
    found: dict[str, list[str]] = {}
    for module in sorted(
        path for top in ("magnetar", "schemas", "sinks", "streaming") for path in (ROOT / top).rglob("*.py")
    ):
        for node in ast.parse(module.read_text()).body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                names = [each.id for each in node.targets if isinstance(each, ast.Name)]
            for name in names:
                if name[0].isupper() and not name.isupper():
                    found.setdefault(name, []).append(str(module.relative_to(ROOT)))
    several = {name: modules for name, modules in found.items() if len(modules) > 1}
    assert set(several) == {"CloseConsumer", "CloseProducer", "Producer", "Tick"}, several
