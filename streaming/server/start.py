"""What `magnetar serve` and `magnetar-double` do alike, whatever reads their options."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.commands import BrokerConfig, Profile
from sinks.outputs import new_file
from streaming.broker.config import BadSetting, configuration, is_known
from streaming.log.broker_settings import nearest_setting
from streaming.server.authentication import TokenAuthentication, TokenKeyError
from streaming.server.server import Address, ListenError, bound

if TYPE_CHECKING:
    from socket import socket

    from streaming.server.server import Server

STANDALONE_SETTINGS = {"namespacesMustExist": "true"}
"""Where the defaults of a standalone Pulsar are not those of a broker that replays a log."""

STDOUT = Path("-")


class BadOption(ValueError):
    """An option can't be what it is. The text says why."""


def broker_config(profile: Profile, settings: dict[str, str]) -> BrokerConfig:
    """The broker's configuration, with the defaults of a standalone. Raises `BadSetting`, with the nearest name for one that is unknown."""
    settings = STANDALONE_SETTINGS | settings
    try:
        configuration(profile, settings)
    except BadSetting as error:
        near = [known for name in settings if not is_known(name) and (known := nearest_setting(name))]
        raise BadSetting(f"{error}{f' (perhaps {near[0]})' if near else ''}") from None
    return BrokerConfig(profile=profile, settings=dict(settings))


def pairs(texts: Iterable[str] | None) -> dict[str, str]:
    """The names and values of options like --set. Raises `BadOption` for one that is not NAME=VALUE."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise BadOption(f"{text!r}: expected NAME=VALUE")
        found[name] = value
    return found


def listener(option: str, text: str, *, only_loopback: bool) -> socket:
    """A socket that is bound to HOST:PORT. Raises `ListenError`: also if `only_loopback`, and other machines reach it."""
    address = Address.parse(text)
    if only_loopback and not address.is_loopback:
        raise ListenError(
            f"{option} {text}: other machines reach this address, and clients need no token: listen on 127.0.0.1, "
            "ask for tokens with --token-secret-key or --token-public-key, or add --insecure if your network "
            "protects it"
        )
    return bound(address, option)


def authentication(secret_key: str | None, public_key: str | None) -> TokenAuthentication | None:
    """What one of the keys checks tokens with; None: there is no key. Raises `TokenKeyError`."""
    try:
        if secret_key is not None:
            return TokenAuthentication.with_secret(secret_key)
        if public_key is not None:
            return TokenAuthentication.with_public_key(public_key)
    except TokenKeyError as error:
        option = "--token-public-key" if secret_key is None else "--token-secret-key"
        raise TokenKeyError(f"{option}: {error}") from None
    return None


def collect_garbage_rarely() -> None:
    """Python's collector walks a hundred thousand entries, which hold no cycles, again and again: an eighth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@contextmanager
def ready_file(target: Path | None) -> Iterator[Callable[[Server], None]]:
    """A function that says where a server is, in JSON on a line of its own: in a new file, which is there as long as the server is, or on
    the standard output (`STDOUT`). `target` None: nowhere. Raises `InTheWay`, `OSError`."""
    written = False

    def ready(server: Server) -> None:
        nonlocal written
        line = json.dumps({"service_url": server.service_url, "admin_url": server.admin_url}) + "\n"
        if target == STDOUT:
            sys.stdout.write(line)
            sys.stdout.flush()
        elif target is not None:
            with new_file(target) as file:
                file.write(line.encode())
            written = True

    try:
        yield ready
    finally:
        if written and target is not None:
            target.unlink(missing_ok=True)
