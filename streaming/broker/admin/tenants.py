"""Admin calls on tenants (mirrors `TenantsBase`). A tenant has roles, which count with authorization, and clusters, which have no
effect here."""

from collections.abc import Callable

import msgspec

from schemas.commands import Admin
from streaming.broker.admin.resources import clusters
from streaming.broker.admin_requests import answer
from streaming.broker.admin_table import AdminAnswer, Call, Names, Table
from streaming.broker.context import Context, TenantInfo, tenant_of
from streaming.broker.errors import AdminError
from streaming.broker.names import is_tenant_name
from streaming.broker.parameters import flag
from streaming.broker.policies.arguments import convert

NO_FORCE = "Broker doesn't allow forced deletion of namespaces"

DeleteNamespace = Callable[[str], None]


def call_tenants(ctx: Context, command: Admin, delete: DeleteNamespace) -> bool:
    """Answer a call on the tenants or on one of them. False, and no answer: the call is about something else.

    `delete` deletes a namespace and its topics.
    """
    path = command.path.partition("?")[0]
    if not CALLS.knows(path):
        return False
    answer(ctx, None, command, lambda: _answer(ctx, command, path, delete))
    return True


def _answer(ctx: Context, command: Admin, path: str, delete: DeleteNamespace) -> AdminAnswer:
    found = CALLS.find(command.method, path)
    if found is None:
        raise AdminError(405, f"{command.method} of all tenants is not allowed")
    handler, names = found
    return handler(ctx, command, names, delete)


def _list(ctx: Context, command: Admin, names: Names, delete: DeleteNamespace) -> AdminAnswer:
    """The names of the tenants."""
    return 200, sorted(ctx.tenants.keys() | set(map(tenant_of, ctx.namespaces)))


def _get(ctx: Context, command: Admin, names: Names, delete: DeleteNamespace) -> AdminAnswer:
    """The tenant's `adminRoles`, which count with authorization, and `allowedClusters`. There is one cluster, `standalone`."""
    if (known := ctx.tenants.get(names["tenant"])) is None:
        raise AdminError(404, "Tenant does not exist")
    return 200, msgspec.to_builtins(known)


def _create(ctx: Context, command: Admin, names: Names, delete: DeleteNamespace) -> AdminAnswer:
    """Create a tenant. The body has its roles and clusters."""
    name = names["tenant"]
    if not is_tenant_name(name):
        raise AdminError(412, "Tenant name is not valid")
    info = _info(ctx, command)
    if name in ctx.tenants:
        raise AdminError(409, "Tenant already exist")
    ctx.tenants[name] = info
    return 204, None


def _update(ctx: Context, command: Admin, names: Names, delete: DeleteNamespace) -> AdminAnswer:
    """Replace the tenant's roles and clusters by those in the body."""
    name, info = names["tenant"], _info(ctx, command)
    if name not in ctx.tenants:
        raise AdminError(404, f"Tenant {name} not found")
    ctx.tenants[name] = info
    return 204, None


def _delete(ctx: Context, command: Admin, names: Names, delete: DeleteNamespace) -> AdminAnswer:
    """Delete a tenant without namespaces. With `?force=true`, also its namespaces, if
    [forceDeleteTenantAllowed](settings.md) is true."""
    name, force = names["tenant"], flag(command.path, "force")
    if force and not ctx.config.forceDeleteTenantAllowed:
        raise AdminError(405, "Broker doesn't allow forced deletion of tenants")
    if name not in ctx.tenants:
        raise AdminError(404, "Tenant doesn't exist")
    namespaces = [namespace for namespace in ctx.namespaces if tenant_of(namespace) == name]
    if namespaces and not force:
        raise AdminError(409, "The tenant still has active namespaces")
    if namespaces and not ctx.config.forceDeleteNamespaceAllowed:
        raise AdminError(405, NO_FORCE)
    for namespace in namespaces:
        delete(namespace)
    del ctx.tenants[name]
    return 204, None


def _info(ctx: Context, command: Admin) -> TenantInfo:
    if command.body is None:
        raise AdminError(412, "TenantInfo is null")
    info: TenantInfo = convert(command.body, TenantInfo)
    if not any(cluster.strip() for cluster in info.allowedClusters):
        raise AdminError(412, "Clusters cannot be empty or blank")
    if not {*info.allowedClusters}.issubset(clusters(ctx)):
        raise AdminError(412, "Clusters do not exist")
    return info


CALLS: Table[Callable[[Context, Admin, Names, DeleteNamespace], AdminAnswer]] = Table(
    "",
    (
        Call("GET", "/tenants", _list),
        Call("GET", "/tenants/{tenant}", _get),
        Call("PUT", "/tenants/{tenant}", _create),
        Call("POST", "/tenants/{tenant}", _update),
        Call("DELETE", "/tenants/{tenant}", _delete),
    ),
)
"""The calls on tenants."""
