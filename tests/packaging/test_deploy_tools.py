"""The recipes in deploy/ pass the published schemas and linters. `make check-deploy` installs those; without them, tests skip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from tests.packaging.dashboard import DEPLOY, expressions, scrape

TOOLS = Path(__file__).parents[2] / ".venv" / "deploy" / "bin"
HERE = Path(__file__).parent


def tool(name: str, comes_from: str = "make check-deploy") -> str:
    """The path of a program, or the test is skipped."""
    found = shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"NOT CHECKED: {name} is not installed ({comes_from})")
    return found


def run(*command: str | Path, cwd: Path = DEPLOY) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_dockerfile() -> None:
    run(tool("hadolint"), "Dockerfile", "Dockerfile.double")


def test_compose() -> None:
    found = json.loads(run(tool("compose-spec"), "-format", "json", "compose.yaml"))
    assert found["services"]["query"]["depends_on"]["responses-topic"]["condition"].endswith("successfully")


def test_compose_twin() -> None:
    """One over the other. The tool knows no environment, so variables stay."""
    checked = run(
        tool("compose-spec"), "-no-interpolation", "-format", "json", "compose.yaml", "compose.twin.yaml"
    )
    found = json.loads(checked)
    assert found["name"] == "magnetar-twin"
    started = {name for name, each in found["services"].items() if not each.get("profiles")}
    assert started == {
        "kafka",
        "responses-topic",
        "query",
        "mirror",
        "prometheus",
        "grafana",
    }
    assert found["services"]["query"]["command"][1] == "--ingress=kafka://kafka:19092/commands"
    assert found["services"]["query"]["read_only"]


def test_kubernetes_twin(tmp_path: Path) -> None:
    validate = tool("kubernetes-validate")
    whole = tmp_path / "all.yaml"
    whole.write_text(run(tool("kubectl", "Kubernetes"), "kustomize", "kubernetes-twin"))
    found = [*YAML(typ="safe").load_all(whole)]
    assert {each["metadata"]["name"] for each in found if each["kind"] == "StatefulSet"} == {
        "magnetar-mirror",
        "magnetar-query",
    }
    for each in found:
        assert each["metadata"].get("namespace", each["metadata"]["name"]) == "magnetar-twin"
        if each["kind"] == "StatefulSet":
            pod = each["spec"]["template"]["spec"]
            assert not pod.get("initContainers")
            assert pod["containers"][0]["image"].startswith("registry.example.com/magnetar:")
            assert pod["securityContext"]["runAsNonRoot"]
    run(validate, "--strict", whole)


def test_kubernetes(tmp_path: Path) -> None:
    """All objects, as Kustomize puts them together, against the strict schemas of Kubernetes."""
    validate = tool("kubernetes-validate")
    whole = tmp_path / "all.yaml"
    whole.write_text(run(tool("kubectl", "Kubernetes"), "kustomize", "kubernetes"))
    assert whole.read_text().count("\nkind: ") == 11
    run(validate, "--strict", whole)


@pytest.mark.parametrize("name", ["magnetar-run.service", "magnetar-serve.service"])
def test_systemd(name: str, tmp_path: Path) -> None:
    unit, analyze = tmp_path / name, tool("systemd-analyze", "systemd")
    text = (DEPLOY / "systemd" / name).read_text()
    unit.write_text(text.replace("/opt/magnetar/bin/magnetar", sys.executable))
    run(analyze, "verify", "--man=no", unit)
    # 0 is safe, 100 is not; 96 is what a unit without any of its protections gets.
    run(analyze, "security", "--offline=true", "--threshold=40", "--no-pager", unit)


# -- Prometheus


@pytest.fixture
def promtool() -> str:
    return tool("promtool")


def test_prometheus(promtool: str) -> None:
    run(promtool, "check", "config", "prometheus/prometheus.yml")


def test_alerts(promtool: str, tmp_path: Path) -> None:
    for file in (DEPLOY / "prometheus/alerts.yml", HERE / "alerts_test.yml"):
        shutil.copy(file, tmp_path)
    run(promtool, "test", "rules", "alerts_test.yml", cwd=tmp_path)


def series() -> list[dict[str, str]]:
    """The samples of a scrape as Prometheus would keep them, each for ten minutes with its value."""
    found: list[tuple[str, dict[str, str], float]] = [("up", {}, 1.0)]
    for family in text_string_to_metric_families(scrape()):
        found += [(sample.name, sample.labels, sample.value) for sample in family.samples]
    made = []
    for name, labels, value in found:
        whole = {"job": "magnetar", "instance": "query:9464", **labels}
        text = ", ".join(f"{label}={json.dumps(value)}" for label, value in whole.items())
        made.append({"series": f"{name}{{{text}}}", "values": f"{value!r}x40"})
    return made


def check(promtool: str, folder: Path, asked: list[tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    """Evaluate expressions on a scrape: each must find something."""
    tests = [
        {
            "expr": f"count({expression}) > bool 0",
            "eval_time": "8m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for _, expression in asked
    ]
    rules = {"tests": [{"interval": "15s", "input_series": series(), "promql_expr_test": tests}]}
    (folder / "test.yml").write_text(json.dumps(rules))  # JSON is YAML
    return subprocess.run(
        [promtool, "test", "rules", "test.yml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_query_of_the_dashboard_finds_something(promtool: str, tmp_path: Path) -> None:
    alerts = (DEPLOY / "prometheus/alerts.yml").read_text()
    asked = [(where, each) for where, each in expressions() if f"alert: {where}\n" not in alerts]
    assert len(asked) > 35
    done = check(promtool, tmp_path, asked)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_query_that_finds_nothing_is_seen(promtool: str, tmp_path: Path) -> None:
    done = check(promtool, tmp_path, [("", "up"), ("", "pulsar_no_such_metric")])
    assert done.returncode == 1
    assert "pulsar_no_such_metric" in done.stdout + done.stderr
