"""Answers of the admin API beside its description in OpenAPI (``schemas/admin.openapi.json``)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

import schemas

DOCUMENT: Any = msgspec.json.decode(Path(schemas.__file__).with_name("admin.openapi.json").read_bytes())

_OPEN = ("ClusterData", "IsolationPolicy", "BookieInfo", "AutoFailoverPolicy")
"""Objects that keep whatever fields they are given."""

_COMPONENTS = {
    **DOCUMENT["components"],
    "schemas": {
        name: schema
        if name in _OPEN or "properties" not in schema
        else {**schema, "additionalProperties": False}
        for name, schema in DOCUMENT["components"]["schemas"].items()
    },
}
"""No field may be missing in the description."""


def check(method: str, path: str, status: int, body: Any) -> None:
    """Raises an error if an answer is not as its call is described. `path`: below ``/admin/v2``, encoded, without a query. `body`: None if there
    is none, bytes if it is not JSON."""
    known = _called(method, path)
    if method in ("HEAD", "OPTIONS"):
        return
    if known is None:
        assert status >= 400, f"{method} {path} is not described, and answers {status}"
        return
    answers = known["responses"]
    answer = answers.get(str(status), answers["default"] if status >= 400 else None)
    assert answer is not None, f"{known['operationId']} answers {status}, of {list(answers)}"
    answer = DOCUMENT["components"]["responses"]["Refused"] if "$ref" in answer else answer
    ((media, content),) = answer.get("content", {None: None}).items()
    if body is not None and media == "application/json":
        _validator(msgspec.json.encode(content["schema"])).validate(body)
    elif body is not None:
        assert media is not None, f"{known['operationId']} answers {status} with a body"


@cache
def _validator(schema: bytes) -> Draft202012Validator:
    return Draft202012Validator({**msgspec.json.decode(schema), "components": _COMPONENTS})


@cache
def _called(method: str, path: str) -> Any:
    found = [methods.get(method.lower()) for pattern, methods in _PATHS if pattern.fullmatch(path)]
    return next((each for each in found if each is not None), None)


def _pattern(path: str) -> re.Pattern[str]:
    form = re.escape(path).replace(r"\{domain\}", "(?:non-)?persistent").replace(r"\{value\}", ".*")
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", form))


_PATHS = [
    (_pattern(path), methods)
    for path, methods in sorted(
        DOCUMENT["paths"].items(), key=lambda each: [part.startswith("{") for part in each[0].split("/")]
    )
]
"""A path with a name goes before one with a parameter at that place."""
