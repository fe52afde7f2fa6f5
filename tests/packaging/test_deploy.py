"""The recipes in deploy/ name what is there: files, options, versions, metrics. (Nothing here starts a container;
test_deploy_tools.py has the published schemas and linters.)"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from streaming import __version__
from streaming.kafka.url import KafkaUrl
from streaming.runtime import jars
from tests.commands import parse, shell_commands
from tests.packaging.dashboard import expressions, scrape

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
README = (DEPLOY / "README.md").read_text()
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
TWIN = DEPLOY / "kubernetes-twin"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
OURS = ("query", "server")
"""The services with our image."""


def documents(file: Path) -> list[dict[str, Any]]:
    return [*YAML(typ="safe").load_all(file)]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    """The Kubernetes objects of a kind by name."""
    found = (each for file in KUBERNETES for each in documents(file) if each["kind"] == kind)
    return {each["metadata"]["name"]: each for each in found}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    (found,) = documents(DEPLOY / "compose.yaml")
    return found


@pytest.fixture(scope="module")
def twin() -> dict[str, Any]:
    (found,) = documents(DEPLOY / "compose.twin.yaml")
    return found


def instructions(name: str) -> list[str]:
    """The arguments of a Dockerfile's instructions of one kind."""
    lines = DOCKERFILE.replace("\\\n", " ").splitlines()
    return [line.split(maxsplit=1)[1] for line in lines if line.startswith(f"{name} ")]


def option(words: list[str], name: str) -> str:
    """The value of an option that is written as ``--name=value``."""
    (found,) = (word.partition("=")[2] for word in words if word.startswith(f"--{name}="))
    return found


def kafka_topics(words: list[str]) -> dict[str, str]:
    """The settings of the topic that kafka-topics.sh creates."""
    assert "--create" in words
    assert "--if-not-exists" in words
    return dict(word.removeprefix("--config=").split("=") for word in words if word.startswith("--config="))


# -- compose.yaml


def test_the_services_are_started_with_options_that_exist(compose: dict[str, Any]) -> None:
    listeners = compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(",")
    topics = set()
    for name in OURS:
        command = compose["services"][name]["command"]
        parse(command)
        urls = [KafkaUrl.parse(word.partition("=")[2]) for word in command if "=kafka://" in word]
        assert {f"INTERNAL://{url.bootstrap}" for url in urls} <= set(listeners)
        topics |= {url.topic for url in urls}
    assert topics == {"commands", "responses", "dead-letters"}


def test_what_a_service_refers_to_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"kafka", "responses-topic", *OURS, "prometheus", "grafana"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).is_dir() if source.startswith(".") else source in compose["volumes"]
        assert set(service.get("depends_on", {})) <= set(services)
    build = services["query"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).exists()
    assert services["server"]["image"] == services["query"]["image"]
    (volume,) = services["query"]["volumes"]
    folder = volume.partition(":")[2]
    assert folder in instructions("VOLUME")
    for name in ("checkpoint", "store"):
        assert option(services["query"]["command"], name) == f"{folder}/{name}"


def test_the_probes_ask_ports_that_are_served(compose: dict[str, Any]) -> None:
    for name, served in (("query", "metrics"), ("server", "admin-listen")):
        service = compose["services"][name]
        port = option(service["command"], served).rpartition(":")[2]
        *python, code = service["healthcheck"]["test"]
        assert python == ["CMD", "python", "-c"]
        ast.parse(code)
        assert f'"http://127.0.0.1:{port}/' in code


def test_services_of_ours_may_do_little_and_have_time_to_stop(compose: dict[str, Any]) -> None:
    for name in OURS:
        service = compose["services"][name]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert {"mem_limit", "stop_grace_period", "healthcheck"} <= service.keys()


def test_services_come_back_with_the_machine(compose: dict[str, Any]) -> None:
    """`on-failure` is for what ends by itself: Docker does not start such a container when it starts."""
    for name, service in compose["services"].items():
        assert service["restart"] == ("on-failure" if name == "responses-topic" else "unless-stopped")


def test_the_page_is_reached_as_the_readme_says(compose: dict[str, Any]) -> None:
    query = compose["services"]["query"]
    port = option(query["command"], "ui").removeprefix("0.0.0.0:")
    assert f"127.0.0.1:{port}:{port}" in query["ports"]
    assert "--insecure" in query["command"]  # of the container, whose port only this machine reaches
    (container,) = of_kind("StatefulSet")["magnetar-query"]["spec"]["template"]["spec"]["containers"]
    assert option(container["args"], "ui") == port  # of the pod itself, where port-forward connects
    for text in (
        f"port-forward pod/magnetar-query-0 {port}\n",
        f"--ui {port}` in `MAGNETAR_OPTIONS`",
        f"ssh -L {port}:127.0.0.1:{port} ",
    ):
        assert text in README


def test_answers_are_kept_for_a_while(compose: dict[str, Any]) -> None:
    created = compose["services"]["responses-topic"]["command"]
    assert (
        option(created, "topic")
        == KafkaUrl.parse(option(compose["services"]["query"]["command"], "responses")).topic
    )
    (init,) = of_kind("StatefulSet")["magnetar-query"]["spec"]["template"]["spec"]["initContainers"]
    for words in (created, init["command"]):
        settings = kafka_topics(words)
        assert 0 < int(settings["segment.ms"]) < int(settings["retention.ms"])
        assert option(words, "partitions") == "4"


def test_no_port_is_open_to_the_network(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_kafka_is_the_version_that_the_tests_run(compose: dict[str, Any]) -> None:
    (version,) = (jar.version for jar in jars.locked("kafka-broker") if jar.name == "kafka_2.13")
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{version}"
    (init,) = of_kind("StatefulSet")["magnetar-query"]["spec"]["template"]["spec"]["initContainers"]
    assert init["image"] == f"apache/kafka:{version}"


def test_kafka_settings_are_texts_that_name_properties(compose: dict[str, Any]) -> None:
    """Compose refuses numbers with a sign of their own; the image maps KAFKA_A_B to a.b."""
    for name, value in compose["services"]["kafka"]["environment"].items():
        assert re.fullmatch(r"KAFKA_[A-Z0-9_]+", name)
        assert isinstance(value, str)


# -- compose.twin.yaml


def interpolated(text: str, **variables: str) -> str:
    """As Compose replaces ``${NAME:-default}`` and ``${NAME:?error}``."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if name in variables:
            return variables[name]
        assert kind == "-", f"{name} has no value: {rest}"
        return rest

    return re.sub(r"\$\{(\w+):([-?])(.*?)\}", value, text)


@pytest.mark.parametrize("options", ["", "--token-file=/run/secrets/pulsar-token --entries sampled"])
def test_the_mirror_writes_what_the_query_reads(
    compose: dict[str, Any], twin: dict[str, Any], options: str
) -> None:
    text = twin["services"]["mirror"]["command"]
    mirror = shlex.split(interpolated(text, MIRROR="public/default shop/day/orders", MIRROR_OPTIONS=options))
    query = twin["services"]["query"]["command"]
    for words in (mirror, query):
        parse(words)
    assert mirror[1:3] == ["public/default", "shop/day/orders"]
    for name in ("ingress", "partitions"):
        assert option(mirror, name) == option(query, name)
    assert (
        f"INTERNAL://{KafkaUrl.parse(option(query, 'ingress')).bootstrap}"
        in (compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"])
    )
    with pytest.raises(AssertionError, match="MIRROR has no value: name topics"):
        interpolated(text)


def test_the_query_of_the_twin_is_that_of_the_other_recipe(
    compose: dict[str, Any], twin: dict[str, Any]
) -> None:
    """But for what clients need, and without the folders of another query."""
    own, other = (each["services"]["query"]["command"] for each in (twin, compose))
    names = {word.partition("=")[0] for word in other}
    assert names - {word.partition("=")[0] for word in own} == {"--responses", "--dead-letters"}
    for name in ("checkpoint", "store", "metrics", "ui"):
        assert option(own, name) == option(other, name)
    assert twin["services"]["query"].keys() == {"command"}
    assert twin["name"] != compose["name"]


def test_the_services_of_the_twin(compose: dict[str, Any], twin: dict[str, Any]) -> None:
    assert twin["services"].keys() - compose["services"].keys() == {"mirror"}
    assert twin["services"]["server"] == {"profiles": ["clients"]}
    mirror, query = twin["services"]["mirror"], compose["services"]["query"]
    assert mirror["image"] == query["image"]
    for name in ("read_only", "cap_drop", "security_opt", "restart", "init"):
        assert mirror[name] == query[name]
    assert {"mem_limit", "stop_grace_period"} <= mirror.keys()
    assert "ports" not in mirror
    (secret,) = mirror["secrets"]
    assert interpolated(twin["secrets"][secret]["file"]) == "/dev/null"
    assert f"--token-file=/run/secrets/{secret}" in README
    assert set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.twin.yaml").read_text())) <= set(
        re.findall(r"\b[A-Z_]+\b", README)
    )


# -- Kubernetes


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, each in of_kind("StatefulSet").items():
        yield name, each["spec"]["template"]["spec"]


def test_pods_are_started_with_options_that_exist() -> None:
    known = {"KAFKA": "kafka:9092", "POD_NAME": "magnetar-server-0", "NAMESPACE": "magnetar"}
    for _, pod in pods():
        (container,) = pod["containers"]
        words = [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], word) for word in container["args"]]
        parse(words)
        for word in words:
            if "=kafka://" in word:
                KafkaUrl.parse(word.partition("=")[2])
        mounted = tuple(mount["mountPath"] for mount in container["volumeMounts"])
        for name in ("kafka-config", "checkpoint", "store", "token-public-key"):
            for value in (word.partition("=")[2] for word in words if word.startswith(f"--{name}=")):
                assert value.removeprefix("file://").startswith(mounted)


def test_pods_are_probed_limited_and_may_do_little() -> None:
    for _, pod in pods():
        assert not pod["automountServiceAccountToken"]
        assert pod["terminationGracePeriodSeconds"] >= 30
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        volumes = {each["name"] for each in pod["volumes"]} | {"data"}
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            security = container["securityContext"]
            assert security == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]}}  # fmt: skip
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        (container,) = pod["containers"]
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            ((_, asked),) = ((k, v) for k, v in container[probe].items() if k in ("httpGet", "tcpSocket"))
            assert asked["port"] in ports


def test_there_is_one_query_and_its_state_outlives_it() -> None:
    query = of_kind("StatefulSet")["magnetar-query"]["spec"]
    assert query["replicas"] == 1
    assert query["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    (claim,) = query["volumeClaimTemplates"]
    mounts = query["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {"name": claim["metadata"]["name"], "mountPath": "/var/lib/magnetar"} in mounts


def test_services_and_selectors_agree() -> None:
    services = of_kind("Service")
    for name, each in of_kind("StatefulSet").items():
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"] == labels
        headless = services[each["spec"]["serviceName"]]["spec"]
        assert headless["clusterIP"] == "None"
        assert headless["selector"] == labels
        ports = {port["containerPort"] for port in each["spec"]["template"]["spec"]["containers"][0]["ports"]}
        assert {port["port"] for port in headless["ports"]} == ports
        policy = of_kind("NetworkPolicy")[name]["spec"]
        assert policy["podSelector"]["matchLabels"] == labels


def test_the_kustomization_is_whole() -> None:
    (found,) = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    files = {file.name for file in KUBERNETES} - {"kustomization.yaml"}
    assert set(found["resources"]) == files
    (image,) = found["images"]
    assert image["newTag"] == __version__
    assert {pod["containers"][0]["image"] for _, pod in pods()} == {image["name"]}
    for secret in found["secretGenerator"]:
        assert all((DEPLOY / "kubernetes" / file).exists() for file in secret["files"])


def test_the_twin_has_a_mirror_and_a_query_that_reads_what_it_writes() -> None:
    known = {
        "KAFKA": "kafka:9092",
        "PULSAR_SERVICE_URL": "pulsar://pulsar:6650",
        "PULSAR_ADMIN_URL": "http://pulsar:8080",
    }
    sets = {file.stem: documents(file) for file in TWIN.glob("*.yaml")}
    (kustomization,) = sets.pop("kustomization")
    literals = [
        each.partition("=")[0] for made in kustomization["configMapGenerator"] for each in made["literals"]
    ]
    assert sorted(literals) == sorted(known)
    args = {}
    for name in ("mirror", "query"):
        (pod,) = (each["spec"]["template"]["spec"] for each in sets[name] if each["kind"] == "StatefulSet")
        (container,) = pod["containers"]
        args[name] = [
            re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], word) for word in container["args"]
        ]
        parse(args[name])
    for each in ("ingress", "partitions"):
        assert option(args["mirror"], each) == option(args["query"], each)
    (container,) = of_kind("StatefulSet")["magnetar-query"]["spec"]["template"]["spec"]["containers"]
    other = {word.partition("=")[0] for word in container["args"]}
    assert other - {word.partition("=")[0] for word in args["query"]} == {"--responses", "--dead-letters"}
    ours, theirs = (
        option(words, "ingress").rpartition("/")[2] for words in (args["query"], container["args"])
    )
    assert ours != theirs  # the two recipes may share a Kafka


def test_the_mirror_may_do_little_and_is_alone() -> None:
    (mirror,) = (each for each in documents(TWIN / "mirror.yaml") if each["kind"] == "StatefulSet")
    pod = mirror["spec"]["template"]["spec"]
    assert mirror["spec"]["replicas"] == 1
    (server,) = of_kind("StatefulSet")["magnetar-server"]["spec"]["template"]["spec"]["containers"]
    (container,) = pod["containers"]
    assert container["securityContext"] == server["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert "memory" in container["resources"]["limits"]
    volumes = {each["name"] for each in pod["volumes"]}
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted.keys() == volumes
    for name in ("kafka-config", "token-file"):
        assert option(container["args"], name).startswith(tuple(mounted.values()))


def test_the_twin_is_over_the_other_kustomization() -> None:
    (found,) = documents(TWIN / "kustomization.yaml")
    (base,) = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    assert found["namespace"] != base["namespace"]
    assert found["labels"] == base["labels"]
    assert found["images"] == base["images"]
    patches = {each["path"] for each in found["patches"] if "path" in each}
    assert {*found["resources"], *patches} == {
        "../kubernetes",
        "mirror.yaml",
        "network-policy.yaml",
        "query.yaml",
    }
    there = {(each["kind"], each["metadata"]["name"]) for file in KUBERNETES for each in documents(file)
             if "metadata" in each}  # fmt: skip
    deleted = {
        (each["target"]["kind"], each["target"]["name"]) for each in found["patches"] if "target" in each
    }
    assert deleted == {each for each in there if each[1] in ("magnetar-server", "magnetar-servers")} | {
        ("Service", "magnetar")
    }


# -- systemd


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_the_command_with_options_that_exist(unit: Path) -> None:
    text = unit.read_text().replace("\\\n", " ")
    settings = [line.partition("=")[::2] for line in text.splitlines() if "=" in line and line[0] != "#"]
    variables = dict(
        word.partition("=")[::2]
        for name, value in settings
        if name == "Environment"
        for word in value.split()
    )
    (start,) = (value for name, value in settings if name == "ExecStart")
    start = re.sub(r"\$\{?(\w+)\}?", lambda found: variables[found[1]].replace("%l", "host"), start)
    program, *words = start.split()
    assert program == "/opt/magnetar/bin/magnetar"
    parse(words)
    assert {"KillMode", "TimeoutStopSec", "Restart", "MemoryMax", "ProtectSystem"} <= {
        name for name, _ in settings
    }
    assert unit.name in README


def test_the_readme_makes_the_response_topic_before_it_starts_the_query() -> None:
    systemd = README[README.index("## systemd") :]
    assert systemd.index("(#the-response-topic)") < systemd.index("systemctl enable")
    (created,) = (words for words in shell_commands(DEPLOY / "README.md") if words[0] == "kafka-topics.sh")
    settings = dict(word.split("=") for word in created if "=" in word)
    init = of_kind("StatefulSet")["magnetar-query"]["spec"]["template"]["spec"]["initContainers"][0]
    assert settings == kafka_topics(init["command"])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_nobody_else_reads_what_a_unit_stores(unit: Path) -> None:
    """Java sets the mode of its files itself, so the folder above them is closed."""
    assert {"StateDirectoryMode=0750", "UMask=0027"} <= set(unit.read_text().splitlines())


# -- Prometheus and Grafana


@pytest.fixture(scope="module")
def scraped() -> dict[str, set[str]]:
    """The metrics of a query by name, each with its labels and those of its scrape."""
    found: dict[str, set[str]] = {"up": {"job", "instance"}}
    for family in text_string_to_metric_families(scrape()):
        for sample in family.samples:
            found.setdefault(sample.name, {"job", "instance"}).update(sample.labels)
    return found


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_metrics_and_labels_of_an_expression_exist(
    where: str, expression: str, scraped: dict[str, set[str]]
) -> None:
    named = re.findall(r"\b((?:magnetar|pulsar|process)_\w+|up)\b(?:\{(.*?)\})?", expression)
    assert named, where
    labels = set()
    for name, matchers in named:
        assert name in scraped
        assert set(re.findall(r"(\w+)[=!]~?\"", matchers)) <= scraped[name]
        labels |= scraped[name]
    for kept in re.findall(r"\bby \((.*?)\)", expression):
        assert set(kept.split(", ")) <= labels


def test_legends_name_labels_of_their_series(scraped: dict[str, set[str]]) -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/magnetar.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) > 30
    for target in (target for panel in dashboard["panels"] for target in panel.get("targets", ())):
        kept = re.findall(r"\bby \((.*?)\)", target["expr"])
        metric = re.search(r"(?:magnetar|pulsar|process)_\w+|\bup\b", target["expr"])
        assert metric is not None
        labels = set(kept[-1].split(", ")) if kept else scraped[metric[0]]
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_prometheus_and_grafana_read_the_files_that_are_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    (prometheus,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    assert all((DEPLOY / "prometheus" / file).exists() for file in prometheus["rule_files"])
    (job,) = prometheus["scrape_configs"]
    port = option(services["query"]["command"], "metrics").rpartition(":")[2]
    assert job["static_configs"] == [{"targets": [f"query:{port}"]}]
    (sources,) = documents(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    (providers,) = documents(DEPLOY / "grafana/provisioning/dashboards/magnetar.yaml")
    mounts = {volume.split(":")[1] for volume in services["grafana"]["volumes"]}
    assert providers["providers"][0]["options"]["path"] in mounts


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


def test_the_image_serves_clients_when_nobody_says_what_to_do(tmp_path: Path) -> None:
    (entrypoint,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entrypoint) == ["magnetar"]
    program = str(Path(sys.executable).with_name("magnetar"))
    words = [word.replace(":6650", ":0").replace(":8080", ":0") for word in json.loads(command)]
    words = [word.replace("/var/lib/magnetar", str(tmp_path)) for word in words]
    with subprocess.Popen([program, *words], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert server.stderr.readline().startswith("magnetar: serving pulsar://localhost:")
        server.terminate()
        server.communicate()
    assert server.returncode == 0
    assert (tmp_path / "data").is_dir()


def test_the_image_runs_as_nobody_special() -> None:
    (user,) = instructions("USER")
    assert f"useradd --system --uid {user} " in DOCKERFILE


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


SUBMITTED = [words for words in shell_commands(DEPLOY / "README.md") if words[0].endswith("spark-submit")]


@pytest.mark.parametrize("words", SUBMITTED, ids=lambda words: words[words.index("--master") + 1])
def test_spark_submit_as_the_readme_has_it(words: list[str]) -> None:
    script = words.index("deploy/spark_submit.py")
    assert (ROOT / words[script]).exists()
    given = words[script + 1 :]
    assert KafkaUrl.parse(given[given.index("--ingress") + 1]).topic == "commands"
    (package,) = (word for word in words if word.startswith("org.apache.spark:"))
    assert package in {jar.coordinates for jar in jars.locked("spark-kafka")}
    parse(["run", *given])


def test_the_readme_has_both_clusters() -> None:
    assert [words[words.index("--master") + 1] for words in SUBMITTED] == ["spark://MASTER:7077", "yarn"]
