"""Permissions that change at random while clients are connected, on a real Pulsar and on `magnetar serve`: what a seed determines, and
what each step is answered."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from tests.authorization.questions import SUPERUSER, TENANT_ADMIN, Admin, Connection, shown

ROLES = ("one", "two", "three", TENANT_ADMIN)
"""Of clients and callers."""
STEPS = 40
_CLIENTS = 4
"""So many are connected at most."""
QUIET = 0.35
"""Seconds without a frame, after which a broker has closed what a change of permissions closes."""

Step = tuple[str, dict[str, Any]]


def plan(seed: int) -> list[Step]:
    """The steps of a seed: a kind, and what it needs."""
    dice, steps, clients = random.Random(f"permissions {seed}"), list[Step](), list[int]()
    granted = list[tuple[str, str]]()  # by a superuser, so that it holds
    opened = requests = 0
    while len(steps) < STEPS:
        kind = dice.choices(
            ["grant", "revoke", "grant_subscription", "revoke_subscription", "mode", "admins", "open", "close", "ask", "call"],
            [6, 5, 1.2, 0.7, 0.5, 0.5, 4, 0.5, 16, 5],
        )[0]  # fmt: skip
        by = SUPERUSER if dice.random() < 0.7 else dice.choice(ROLES)
        on = dice.choice(["namespace", "namespace", "t", "t", "p", "p-partition-0"])
        role = dice.choice([*ROLES, "t*", "*e"])
        step: dict[str, Any] = {"by": by}
        if kind == "grant":
            step |= {
                "on": on,
                "role": role,
                "actions": dice.choice(_ACTIONS),
            }
        elif kind == "revoke":
            if granted and dice.random() < 0.8:
                on, role = granted.pop(dice.randrange(len(granted)))
            role = dice.choice(ROLES[:3]) if dice.random() < 0.8 else role
            if by == SUPERUSER:
                granted.append((on, role))
            step |= {"on": on, "role": role}
        elif kind == "grant_subscription":
            step |= {"name": dice.choice("ab"), "roles": dice.sample(ROLES, dice.choice([0, 1, 2]))}
        elif kind == "revoke_subscription":
            step |= {"name": dice.choice("ab"), "role": dice.choice(ROLES)}
        elif kind == "mode":
            step |= {"mode": dice.choice(["None", "Prefix"])}
        elif kind == "admins":
            step |= {"roles": dice.choice([[TENANT_ADMIN], ["one"], []])}
        elif kind == "open":
            if len(clients) == _CLIENTS:
                continue
            clients.append(opened)
            step = {"client": opened, "role": dice.choice(ROLES)}
            opened += 1
        elif kind == "close":
            if not clients:
                continue
            step = {"client": clients.pop(dice.randrange(len(clients)))}
        elif kind == "ask":
            if not clients:
                continue
            requests += 1
            step = {"client": dice.choice(clients), "frame": dice.choice(_FRAMES), "id": requests,
                    "topic": dice.choice(["t", "t", "p-partition-0", "p-partition-1"]), "name": dice.choice(["a", "b", "one-c"])}  # fmt: skip
        else:
            step = {"by": dice.choice(ROLES), "call": dice.randrange(len(_CALLS))}
        steps.append((kind, step))
    return steps


_ACTIONS: tuple[list[str], ...] = (
    ["produce"],
    ["consume"],
    ["produce", "consume"],
    ["produce", "consume"],
    ["produce", "consume"],
    [],
)

_FRAMES = ("LOOKUP", "PARTITIONED_METADATA", "PRODUCER", "PRODUCER", "PRODUCER", "SUBSCRIBE", "SUBSCRIBE", "SUBSCRIBE",
           "GET_TOPICS_OF_NAMESPACE")  # fmt: skip

_CALLS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/namespaces/{ns}/permissions", None),
    ("GET", "/persistent/{ns}/t/permissions", None),
    ("GET", "/persistent/{ns}/p/permissions", None),
    ("GET", "/namespaces/{ns}/permissions/subscription", None),
    ("GET", "/namespaces/{ns}/subscriptionAuthMode", None),
    ("GET", "/persistent/{ns}", None),
    ("GET", "/persistent/{ns}/t/stats", None),
    ("GET", "/persistent/{ns}/t/subscriptions", None),
    ("GET", "/persistent/{ns}/p/partitions", None),
    ("PUT", "/persistent/{ns}/t/subscription/a", {"ledgerId": -1, "entryId": -1}),
    ("POST", "/persistent/{ns}/t/subscription/a/skip_all", None),
    ("POST", "/persistent/{ns}/t/subscription/a/skip/1", None),
    ("POST", "/persistent/{ns}/t/subscription/b/expireMessages/1", None),
    ("DELETE", "/persistent/{ns}/t/subscription/b", None),
    ("GET", "/namespaces/{ns}/messageTTL", None),
    ("POST", "/namespaces/{ns}/messageTTL", 60),
    ("POST", "/persistent/{ns}/t/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
    ("PUT", "/persistent/{ns}/t/unload", None),
    ("GET", "/tenants/{tenant}", None),
    ("GET", "/namespaces/{tenant}", None),
)


def play(admin: Admin, address: str, tenant: str, steps: list[Step], quiet: float = QUIET) -> Iterator[str]:
    """Carry out steps in a new tenant of a broker at HOST:PORT. Yields for each what it was answered, and what clients got besides until
    none came for `quiet` seconds."""
    space = f"{tenant}/n"
    admin.must("PUT", f"/tenants/{tenant}", {"adminRoles": [TENANT_ADMIN], "allowedClusters": ["standalone"]})
    admin.must("PUT", f"/namespaces/{space}")
    admin.must("PUT", f"/persistent/{space}/t")
    admin.must("PUT", f"/persistent/{space}/p/partitions", 2)
    clients: dict[int, Connection] = {}
    for kind, step in steps:
        if kind == "open":
            clients[step["client"]] = Connection(address, step["role"])
            said: Any = clients[step["client"]].greeting[0]
        elif kind == "close":
            if (client := clients.pop(step["client"], None)) is not None:
                client.close()
            said = None
        elif kind == "ask":
            asked = clients.get(step["client"])
            said = None if asked is None else shown(asked.ask(*_frame(space, step)), tenant)
        else:
            said = _answer(admin.ask(step["by"], *_call(tenant, space, kind, step)), tenant, kind == "call")
        besides = {
            number: [shown(each, tenant) for each in found]
            for number, client in clients.items()
            if (found := client.rest(quiet if kind not in ("open", "close") else 0))
        }
        for number in [number for number, found in besides.items() if "CLOSED" in found]:
            clients.pop(number).close()
        yield json.dumps([kind, step, said, besides])
    for client in clients.values():
        client.close()


def _frame(space: str, step: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    cmd, id_ = step["frame"], step["id"]
    topic: dict[str, Any] = {"topic": f"persistent://{space}/{step['topic']}", "request_id": id_}
    match cmd:
        case "PRODUCER":
            return cmd, {**topic, "producer_id": id_}
        case "SUBSCRIBE":
            return cmd, {**topic, "subscription": step["name"], "subType": "Shared", "consumer_id": id_}
        case "GET_TOPICS_OF_NAMESPACE":
            return cmd, {"request_id": id_, "namespace": space, "mode": "ALL"}
        case _:
            return cmd, topic


def _call(tenant: str, space: str, kind: str, step: dict[str, Any]) -> tuple[str, str, Any]:
    if kind == "call":
        method, path, body = _CALLS[step["call"]]
        return method, path.format(ns=space, tenant=tenant), body
    if kind in ("grant", "revoke"):
        on = f"/namespaces/{space}" if step["on"] == "namespace" else f"/persistent/{space}/{step['on']}"
        path = f"{on}/permissions/{step['role']}"
        return ("POST", path, step["actions"]) if kind == "grant" else ("DELETE", path, None)
    if kind == "mode":
        return "POST", f"/namespaces/{space}/subscriptionAuthMode", step["mode"]
    if kind == "admins":
        return "POST", f"/tenants/{tenant}", {"adminRoles": step["roles"], "allowedClusters": ["standalone"]}
    path = f"/namespaces/{space}/permissions/{'subscription/' if kind == 'grant_subscription' else ''}{step['name']}"
    if kind == "grant_subscription":
        return "POST", path, step["roles"]
    return "DELETE", f"{path}/{step['role']}", None


def _answer(answer: tuple[int, Any], tenant: str, whole: bool) -> Any:
    """The status of a call, with the reason of a refusal, or with the answer itself where permissions or names were asked for."""
    status, said = answer
    if status == 500:  # a page of HTML in Pulsar
        found = re.search(r"Message: (.*)", str(said))
        return [status, str(said) if found is None else found[1]]
    if status >= 300:
        return [status, str(said).replace(tenant, "TENANT")]
    if not whole or (isinstance(said, dict) and "msgInCounter" in said):
        return status
    return [status, json.loads(json.dumps(_sorted(said)).replace(tenant, "TENANT"))]


def _sorted(said: Any) -> Any:
    """Lists without an order of their own."""
    if isinstance(said, dict):
        return {name: _sorted(said[name]) for name in sorted(said)}
    return sorted(said) if isinstance(said, list) else said
