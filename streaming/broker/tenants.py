"""Admin calls on tenants (mirrors `TenantsBase`). A tenant has roles and clusters, which have no effect here."""

import re
from typing import Any

import msgspec

from schemas.commands import Admin
from streaming.broker.admin import respond
from streaming.broker.context import CLUSTER, Context, TenantInfo, tenant_of
from streaming.broker.errors import AdminError
from streaming.broker.names import is_tenant_name
from streaming.broker.policies.arguments import convert, query

_TENANTS = re.compile(r"/tenants(?:/(?P<tenant>[^/?]+))?(?:\?.*)?")


def call_tenants(ctx: Context, command: Admin) -> bool:
    """Answer a call on the tenants or on one of them. False, and no answer: the call is about something else."""
    match = _TENANTS.fullmatch(command.path)
    if match is None:
        return False
    try:
        status, response = _answer(ctx, command, match["tenant"])
    except AdminError as error:
        status, response = error.status, {"reason": error.reason}
    respond(ctx, None, command, status, response)
    return True


def _answer(ctx: Context, command: Admin, name: str | None) -> tuple[int, Any]:
    if name is None:
        if command.method != "GET":
            raise AdminError(405, f"{command.method} of all tenants is not allowed")
        return 200, sorted(ctx.tenants.keys() | set(map(tenant_of, ctx.namespaces)))
    known = ctx.tenants.get(name)
    match command.method:
        case "GET":
            if known is None:
                raise AdminError(404, "Tenant does not exist")
            return 200, msgspec.to_builtins(known)
        case "PUT":
            if not is_tenant_name(name):
                raise AdminError(412, "Tenant name is not valid")
            info = _info(command)
            if known is not None:
                raise AdminError(409, "Tenant already exist")
            ctx.tenants[name] = info
        case "POST":
            info = _info(command)
            if known is None:
                raise AdminError(404, f"Tenant {name} not found")
            ctx.tenants[name] = info
        case _:
            if query(command.path).get("force") == "true":
                raise AdminError(405, "Broker doesn't allow forced deletion of tenants")
            if known is None:
                raise AdminError(404, "Tenant doesn't exist")
            if any(tenant_of(namespace) == name for namespace in ctx.namespaces):
                raise AdminError(409, "The tenant still has active namespaces")
            del ctx.tenants[name]
    return 204, None


def _info(command: Admin) -> TenantInfo:
    if command.body is None:
        raise AdminError(412, "TenantInfo is null")
    info: TenantInfo = convert(command.body, TenantInfo)
    if not any(cluster.strip() for cluster in info.allowedClusters):
        raise AdminError(412, "Clusters cannot be empty or blank")
    if set(info.allowedClusters) != {CLUSTER}:
        raise AdminError(412, "Clusters do not exist")
    return info
