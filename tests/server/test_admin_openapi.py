"""The description of the admin API: it is whole. `described` holds each answer that a test gets beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import ValidationError

from schemas import admin
from streaming.broker.admin_calls import CALLS
from streaming.broker.persistent.admin_operations import MessageIdBody
from streaming.broker.schema.schema_registry import SchemaPayload
from streaming.server.admin.absent import UNSUPPORTED
from streaming.server.admin.application import OWN
from streaming.server.control_api import OPENAPI
from tests.server.described import DOCUMENT, check
from tests.server.rest import Api, on_api
from tests.server.test_openapi import objects, types

ROOT = Path(__file__).parents[2]
SCHEMAS = DOCUMENT["components"]["schemas"]


def operations() -> list[tuple[str, str, Any]]:
    return [
        (method.upper(), path, operation)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_calls_are_those_of_the_table() -> None:
    described = [(method, path) for method, path, _ in operations()]
    assert {*described} == {*(call[:2] for call in (*CALLS, *OWN)), *(("GET", path) for path in UNSUPPORTED)}
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len({*ids}) == len(ids) > 300
    assert [
        each["operationId"] for method, _, each in operations() if method == "GET" and "requestBody" in each
    ] == []


def test_every_field_has_a_description_and_a_unit() -> None:
    fields = [each for name, schema in SCHEMAS.items() for each in objects(schema, name)]
    parameters = DOCUMENT["components"]["parameters"]
    named = [each for each in fields if each[0].count(".") == 1]  # not what is in a list or an object
    assert len(named) > 250
    assert [name for name, field in named if not field.get("description", "").endswith(".")] == []
    assert [name for name, each in parameters.items() if not each["description"].endswith(".")] == []
    bodies = [
        (operation["operationId"], each)
        for _, _, operation in operations()
        for content in (operation.get("requestBody", {}), *operation["responses"].values())
        for media in content.get("content", {}).values()
        for each in (media["schema"], *media["schema"].get("anyOf", ()))
    ]
    bodies += [each for name, schema in bodies for each in objects(schema, name)]
    fields += [(name, each["schema"]) for name, each in parameters.items()]
    for name, field in (*fields, *bodies):
        numbers = {"integer", "number"} & types(field) and "oneOf" not in field
        units = [each.get("x-unit") for each in (field, *field.get("anyOf", ()))]
        assert any(units) or not numbers, name
    assert [name for name, schema in SCHEMAS.items() if not schema["description"].endswith(".")] == []
    assert [each["operationId"] for _, _, each in operations() if not each["description"].endswith(".")] == []


@pytest.mark.parametrize(("theirs", "ours"), [(MessageIdBody, admin.MessagePosition), (SchemaPayload, admin.SchemaBody)])  # fmt: skip
def test_bodies_are_those_that_the_broker_reads(theirs: Any, ours: Any) -> None:
    fields = [
        {field.name: (field.required, field.default) for field in msgspec.structs.fields(each)} for each in (theirs, ours)
    ]  # fmt: skip
    assert fields[0] == fields[1]


def test_an_answer_that_is_not_as_described_is_found() -> None:
    check("GET", "/tenants/acme", 200, {"adminRoles": []})
    check("GET", "/tenants/acme", 404, {"reason": "gone"})
    for status, body in ((200, {"roles": []}), (200, []), (404, {"why": "gone"})):
        with pytest.raises(ValidationError):
            check("GET", "/tenants/acme", status, body)
    for method, path, status in (("GET", "/tenants/acme", 201), ("GET", "/nonsense", 200)):
        with pytest.raises(AssertionError):
            check(method, path, status, {})


def test_it_is_served() -> None:
    async def ask(api: Api) -> Any:
        return (await api.call("GET", "/admin/v2/openapi.json")).body

    assert on_api(ask) == DOCUMENT


GENERATOR = "openapi-python-client==0.29.1"

PROGRAM = """
import sys

import admin, control
from admin.api.namespaces import get_namespace, get_namespace_message_ttl, post_namespace_message_ttl, put_namespace
from admin.api.topics import get_topic_stats, put_topic, put_topic_subscription_by_subscription
from admin.models import Domain, MessagePosition
from control.api.default import peek, set_clock
from control.models import ClockCall

url = sys.argv[1]
tool, double = admin.Client(f"{url}/admin/v2"), control.Client(f"{url}/magnetar/v1")
assert put_namespace.sync_detailed("public", "shop", client=tool).status_code == 204
assert put_namespace.sync("public", "shop", client=tool).reason == "Namespace already exists"
post_namespace_message_ttl.sync("public", "shop", client=tool, body=60)
assert get_namespace_message_ttl.sync("public", "shop", client=tool) == 60
found = get_namespace.sync("public", "shop", client=tool)
assert (found.message_ttl_in_seconds, found.bundles.num_bundles) == (60, 4), found
topic = (Domain.PERSISTENT, "public", "shop", "a/b")
put_topic.sync(*topic, client=tool)
put_topic_subscription_by_subscription.sync(*topic, "s", client=tool, body=MessagePosition())
stats = get_topic_stats.sync(*topic, client=tool, exclude_consumers=True)
assert stats.subscriptions["s"].msg_backlog == 0 and not stats.subscriptions["s"].replicated, stats
assert set_clock.sync(client=double, body=ClockCall(advance=5)).moved == 5
assert peek.sync(client=double, topic="persistent://public/shop/a/b", subscription="s").messages == []
print("done")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_generated_client_works(tmp_path: Path) -> None:
    """That of both descriptions, in an environment of its own: the generator comes from the package index."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    run = partial(subprocess.run, cwd=tmp_path, check=True, text=True)
    run([environment / "bin/pip", "install", "--quiet", GENERATOR])
    (tmp_path / "program.py").write_text(PROGRAM)
    for name, document in (("admin", DOCUMENT), ("control", OPENAPI)):
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(document))
        said = run(
            [environment / "bin/openapi-python-client", "generate", "--path", f"{name}.json", "--output-path", name, "--meta", "none"],
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},  # where ruff is
            capture_output=True,
        )  # fmt: skip
        assert "WARNING" not in said.stdout + said.stderr
    command = [sys.executable, "-m", "streaming.cli.double", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
               "--ready-file", "-"]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as double:
        assert double.stdout is not None
        url = msgspec.json.decode(double.stdout.readline())["admin_url"]
        try:
            done = run([environment / "bin/python", "program.py", url], check=False, capture_output=True)
        finally:
            double.terminate()
    assert done.stdout == "done\n", done.stderr
