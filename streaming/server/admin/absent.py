"""Paths of Pulsar's admin REST API that nothing stands behind: what is not supported, and parts of Pulsar that Magnetar does not
have."""

from typing import Any

from streaming.broker.admin_table import TOPIC

_NEVER_RUN = {"status": "NOT_RUN", "lastError": ""}

_NO_MESSAGE = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}

UNSUPPORTED: dict[str, Any] = {
    f"{TOPIC}/offload": _NEVER_RUN | {"firstUnoffloadedMessage": _NO_MESSAGE},
}  # fmt: skip
"""Paths of Pulsar's that are not supported, with what GET answers: that nothing is set, or was ever run. A call that would change
that is answered with 501."""

_NO_WORKER = 409, "Pulsar Function Worker is not enabled, probably functionsWorkerEnabled is set to false"
_NO_PACKAGES = 503, "Package Management Service is not enabled in the broker."

_OF_WORKER = (
    "worker/{rest:path}", "worker-stats/{rest:path}", "functions/builtins", "functions/connectors",
    *(f"{kind}{s}/builtin{kind}s" for kind in ("source", "sink") for s in ("", "s")),
    *(f"{kind}{s}/reloadBuiltIn{kind.title()}s" for kind in ("source", "sink") for s in ("", "s")),
    *(
        f"{kind}/{{tenant}}/{{namespace}}{rest}"
        for kind in ("functions", "sources", "sinks", "source", "sink")
        for rest in ("", "/{rest:path}")
    ),
)  # fmt: skip

ABSENT: dict[str, tuple[int, str]] = {
    **{f"/admin/{version}/{path}": _NO_WORKER for version in ("v2", "v3") for path in _OF_WORKER},
    "/admin/v3/packages/{rest:path}": _NO_PACKAGES,
}
"""Paths of parts of Pulsar that Magnetar does not have, with the status and the reason that a broker without them answers."""
