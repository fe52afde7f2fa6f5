"""The description of a test double's API: it is whole, and true."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from starlette.applications import Starlette

from schemas.commands import Admin, Publish
from streaming.runtime.clock import RealClock
from streaming.server.binary import BinaryServer
from streaming.server.clock import HeldClock
from streaming.server.control import Control
from streaming.server.control_api import OPENAPI
from streaming.server.embedded import STANDALONE, EmbeddedEngine

API: Any = OPENAPI
SCHEMAS = API["components"]["schemas"]
TOPIC = "persistent://public/default/orders"
SUBSCRIBED = Admin(
    method="PUT",
    path="/persistent/public/default/orders/subscription/s",
    body={"ledgerId": -1, "entryId": -1},
)


def operations() -> Iterator[tuple[str, str, Any]]:
    for path, methods in API["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def objects(schema: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema that are those of a field or a parameter, by their names."""
    for key, field in schema.get("properties", {}).items():
        yield f"{name}.{key}", field
        yield from objects(field, f"{name}.{key}")
    for key in ("items", "additionalProperties"):
        if isinstance(within := schema.get(key), dict):
            yield from objects(within, f"{name}.{key}")


def types(schema: Any) -> set[str]:
    return {schema.get("type"), *(each.get("type") for each in schema.get("anyOf", ()))}


def test_every_field_has_a_description_and_a_unit() -> None:
    fields = [each for name, schema in SCHEMAS.items() for each in objects(schema, name)]
    fields += [
        (
            f"{operation['operationId']} {each['name']}",
            {"description": each.get("description"), **each["schema"]},
        )
        for _, _, operation in operations()
        for each in operation["parameters"]
    ]
    assert len(fields) > 40
    assert [name for name, field in fields if not field.get("description")] == []
    assert [
        name for name, field in fields if {"integer", "number"} & types(field) and not field.get("x-unit")
    ] == []
    assert [name for name, schema in SCHEMAS.items() if not schema.get("description")] == []


def test_every_answer_has_a_schema_and_every_operation_an_id() -> None:
    for _, _, operation in operations():
        for status in ("200", "400"):
            reference = operation["responses"][status]["content"]["application/json"]["schema"]["$ref"]
            assert reference.removeprefix("#/components/schemas/") in SCHEMAS
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(ids)) == len(ids)


def validated(method: str, path: str, answer: httpx.Response) -> Any:
    """An answer that is as its schema says, and has every field of that."""
    content = API["paths"][path][method.lower()]["responses"][str(answer.status_code)]["content"]
    name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    found = answer.json()
    Draft202012Validator({**SCHEMAS[name], "components": API["components"]}).validate(found)
    assert set(found) == set(SCHEMAS[name]["properties"])
    return found


def test_the_calls_are_those_of_the_description_and_answer_as_it_says() -> None:
    async def main() -> set[tuple[str, str]]:
        clock = HeldClock(1_700_000_000_000, RealClock())
        async with EmbeddedEngine(clock=clock, begins_with=STANDALONE, test_double=True) as engine:

            async def begun(name: str, *, same_address: bool) -> str:
                return f"pulsar://{name}:1"

            left = [{"test": "earlier", "clients": ["a consumer"], "tries": {"Pulsar-CPP-v3": 2}}]
            control = Control(
                engine, BinaryServer(engine, "pulsar://localhost:6650"), clock, begun, lambda: left
            )
            assert {
                (method, route.path)
                for route in control.routes()
                for method in (route.methods or set()) - {"HEAD"}
                if route.path != "/openapi.json"
            } == {(method, path) for method, path, _ in operations()}
            await engine.submit(TOPIC, Publish(producer="p", sequence_id=0, payload="x"))
            done: set[tuple[str, str]] = set()
            transport = httpx.ASGITransport(Starlette(routes=control.routes()))
            async with httpx.AsyncClient(transport=transport, base_url="http://double") as http:

                async def call(
                    method: str, path: str, body: Any = None, status: int = 200, **names: Any
                ) -> Any:
                    given = path.format(**names) if "id" in names else path
                    answer = await http.request(
                        method, given, json=body, params={k: v for k, v in names.items() if k != "id"}
                    )
                    assert answer.status_code == status, answer.text
                    done.add((method, path))
                    return validated(method, path, answer)

                await call("GET", "/clock")
                await call("POST", "/clock", {"advance": 5})
                await call("POST", "/clock", {"advance_to_next": 1})
                await call("POST", "/clock", {"advance": -5}, 400)
                id_ = (await call("POST", "/faults", {"action": "drop"}))["id"]
                await call("GET", "/faults/{id}", id=id_)
                await call("DELETE", "/faults/{id}", id=id_)
                await call("GET", "/peek", status=400, topic="none", subscription="s")
                await engine.submit(TOPIC, SUBSCRIBED)
                (message,) = (await call("GET", "/peek", topic="orders", subscription="s"))["messages"]
                assert message["payload"] == "eA=="
                snapshot = await call("POST", "/snapshots")
                await call("POST", "/snapshots/{id}/restore", id=snapshot["id"])
                await call("POST", "/reset")
                assert (await call("POST", "/tests", {"name": "next"}))["service_url"] == "pulsar://next:1"
                assert (await call("GET", "/shut-out"))["shut_out"] == left
            return done

    assert asyncio.run(main()) == {(method, path) for method, path, _ in operations()}
