"""Records what a real Pulsar says on WebSockets: ``python -m tests.websocket.record [--pulsar VERSION]`` writes the file that the tests compare
with, in a minute. The file of 4.0.7 has all conversations, those of other versions what differs from it. With ``--compare``, it asks `magnetar
serve` the same and prints what differs."""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from schemas.commands.control import Profile
from streaming.broker.config import profile_of
from streaming.server.embedded import STANDALONE, EmbeddedEngine
from tests.authorization.questions import SETTINGS as AUTHORIZATION
from tests.authorization.questions import SUPERUSER, token
from tests.parity.loopback import enter_namespace
from tests.parity.pulsar import VERSION, LocalPulsar, has_zookeeper
from tests.server.conftest import Running, running_on
from tests.websocket.conversations import BEFORE_4_0, CONVERSATIONS, held


def _path(version: str) -> Path:
    return Path(__file__).parent / f"pulsar-{version}.json"


OTHERS = sorted(
    path.stem.removeprefix("pulsar-")
    for path in _path("*").parent.glob("pulsar-*.json")
    if path != _path(VERSION)
)
"""The other versions that were recorded."""

_BOTH = {"brokerDeleteInactiveTopicsEnabled": "false", "maxMessageSize": "700000"}
SETTINGS = {"webSocketServiceEnabled": "true", **_BOTH}


def recorded() -> dict[str, list[Any]]:
    """What came back in each conversation."""
    found: dict[str, list[Any]] = json.loads(_path(VERSION).read_text())
    return found


def differing(version: str) -> dict[str, list[Any]]:
    """What came back from another version in the conversations in which that is not the same."""
    found: dict[str, list[Any]] = json.loads(_path(version).read_text())
    return found


def standalone(profile: Profile = "4.0") -> EmbeddedEngine:
    """The engine of `magnetar serve`, with the settings of the real one."""
    own = {"namespacesMustExist": "true", **_BOTH}
    return EmbeddedEngine(settings=own, profile=profile, begins_with=STANDALONE)


def is_old(version: str) -> bool:
    """Whether it is before 4.0."""
    return int(version.partition(".")[0]) < 4


def address_of(server: Running) -> str:
    """The host and the port of a server's web service."""
    return str(server.server.admin_url).partition("://")[2].replace("localhost", "127.0.0.1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pulsar", default=VERSION)
    parser.add_argument("--compare", action="store_true")
    given = parser.parse_args()
    if has_zookeeper(given.pulsar):
        enter_namespace("tests.websocket.record")
    old = is_old(given.pulsar)
    with tempfile.TemporaryDirectory() as folder, LocalPulsar(Path(folder), SETTINGS, given.pulsar) as broker:
        address = f"127.0.0.1:{broker.ports.admin}"
        said = {name: held(address, name, old=old) for name in (BEFORE_4_0 if old else CONVERSATIONS)}
    own = {
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token(SUPERUSER)}",
    }
    protected = LocalPulsar(Path(folder), SETTINGS | AUTHORIZATION | own, given.pulsar, token(SUPERUSER))
    with protected as broker:
        said["roles"] = held(f"127.0.0.1:{broker.ports.admin}", "roles", old=old)
    if not given.compare:
        if given.pulsar != VERSION:
            usual = recorded()
            said = {name: heard for name, heard in said.items() if usual[name] != heard}
        lines = ",\n".join(
            f'"{name}": [\n' + ",\n".join(json.dumps(each, ensure_ascii=False) for each in heard) + "\n]"
            for name, heard in said.items()
        )
        _path(given.pulsar).write_text(f"{{\n{lines}\n}}\n")
        return
    with running_on(partial(standalone, profile_of(given.pulsar))) as server:
        del said["roles"]  # the test holds it with a server that has tokens
        for name, heard in said.items():
            for real, ours in zip(heard, held(address_of(server), name, old=old), strict=False):
                if real != ours:
                    print(f"{name}\n  {real}\n  {ours}")


if __name__ == "__main__":
    main()
