"""A call of the admin REST API in this process: the application answers it as it answers HTTP."""

from typing import Any

import msgspec

from streaming.server.admin.application import application
from streaming.server.engine import Engine


async def call(engine: Engine, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """The status and the body of the response to a call. `path`: below ``/admin/v2``, encoded, with its query. `body`: None, or what JSON can hold."""
    sent: list[dict[str, Any]] = []
    content = b"" if body is None else msgspec.json.encode(body)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content}

    async def send(message: Any) -> None:
        sent.append(message)

    plain, _, query = f"/admin/v2{path}".partition("?")
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": plain,
        "raw_path": plain.encode(), "query_string": query.encode(), "root_path": "", "headers": [],
        "server": ("localhost", 0), "client": None,
    }  # fmt: skip
    await application(engine, str, "")(scope, receive, send)
    start = next(each for each in sent if each["type"] == "http.response.start")
    return start["status"], b"".join(
        each.get("body", b"") for each in sent if each["type"] == "http.response.body"
    )
