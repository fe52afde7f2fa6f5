"""The recipes in deploy/ name what is there: files, options, versions. (Nothing here starts a container.)"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deploy.spark_submit import parser
from streaming.kafka.url import KafkaUrl
from streaming.runtime import jars
from tests.commands import parse, shell_commands

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(DEPLOY / "compose.yaml")
    return found


def instructions(name: str) -> list[str]:
    """The arguments of a Dockerfile's instructions of one kind."""
    lines = DOCKERFILE.replace("\\\n", " ").splitlines()
    return [line.split(maxsplit=1)[1] for line in lines if line.startswith(f"{name} ")]


# -- compose.yaml


def test_the_query_is_started_with_options_that_exist(compose: dict[str, Any]) -> None:
    command = compose["services"]["query"]["command"]
    parse(command)
    urls = [KafkaUrl.parse(word) for word in command if word.startswith("kafka://")]
    listeners = compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert {f"INTERNAL://{url.bootstrap}" for url in urls} <= set(listeners.split(","))
    assert len({url.topic for url in urls}) == 3


def test_what_a_service_refers_to_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for volume in service["volumes"]:
            assert volume.partition(":")[0] in compose["volumes"]
        assert set(service.get("depends_on", {})) <= set(services)
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    build = services["query"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).exists()
    (volume,) = services["query"]["volumes"]
    assert volume.partition(":")[2] in instructions("VOLUME")
    checkpoint = services["query"]["command"][services["query"]["command"].index("--checkpoint") + 1]
    assert f"{checkpoint}/commits" in services["query"]["healthcheck"]["test"][1]


def test_no_port_is_open_to_the_network(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_kafka_is_the_version_that_the_tests_run(compose: dict[str, Any]) -> None:
    (version,) = re.findall(r"org\.apache\.kafka:kafka_2\.13:(\S+)", jars._KAFKA_BROKER)
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{version}"


def test_kafka_settings_are_texts_that_name_properties(compose: dict[str, Any]) -> None:
    """Compose refuses numbers with a sign of their own; the image maps KAFKA_A_B to a.b."""
    for name, value in compose["services"]["kafka"]["environment"].items():
        assert re.fullmatch(r"KAFKA_[A-Z0-9_]+", name)
        assert isinstance(value, str)


# -- Dockerfile


def test_the_image_is_built_of_files_that_exist() -> None:
    sources = [source for copied in instructions("COPY") if not copied.startswith("--from")
               for source in copied.split()[:-1]]  # fmt: skip
    assert {"pyproject.toml", "schemas", "sinks", "streaming"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extra,) = re.findall(r"'\.\[(\w+)\]'", DOCKERFILE)
    assert extra in project["optional-dependencies"]
    assert {project["readme"], *project["license-files"]} <= set(sources)


def test_the_constraints_are_the_lock() -> None:
    (pattern,) = re.findall(r"sed -nE 's/(.*)/\\1/p' requirements\.lock", DOCKERFILE)
    lock = (ROOT / "requirements.lock").read_text()
    found = re.findall(pattern, lock, re.MULTILINE)
    assert len(found) == sum("==" in line for line in lock.splitlines()) > 50
    assert any(line.startswith("pyspark==") for line in found)


def test_the_image_starts_the_command_as_nobody_special() -> None:
    (entrypoint,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entrypoint) == ["magnetar"]
    assert json.loads(command) == ["--help"]
    assert instructions("USER") == ["magnetar"]


def test_what_the_image_fetches_at_build_time_is_there() -> None:
    (code,) = (word for run in instructions("RUN") for word in shlex.split(run) if "import" in word)
    modules: dict[str, Any] = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            modules |= {
                each.name: importlib.import_module(f"{node.module}.{each.name}") for each in node.names
            }
    calls = [node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    for call in calls:
        assert isinstance(call, ast.Attribute)
        assert isinstance(call.value, ast.Name)
        assert callable(getattr(modules[call.value.id], call.attr))
    assert len(calls) == 2


# -- spark-submit


def test_spark_submit_as_the_readme_has_it() -> None:
    (words,) = (words for words in shell_commands(DEPLOY / "README.md") if words[0].endswith("spark-submit"))
    script = words.index("deploy/spark_submit.py")
    assert (ROOT / words[script]).exists()
    given = parser().parse_args(words[script + 1 :])
    assert KafkaUrl.parse(given.ingress).topic == "commands"
    (package,) = (word for word in words if word.startswith("org.apache.spark:"))
    assert package in jars._SPARK_KAFKA
    parse(["run", *words[script + 1 :]])  # the same options as `magnetar run`
