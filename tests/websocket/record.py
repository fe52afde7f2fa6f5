"""Records what a real Pulsar says on WebSockets: ``python -m tests.websocket.record`` writes the file that the tests compare with, in a
minute. With ``--compare``, it asks `magnetar serve` the same and prints what differs."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from streaming.server.embedded import STANDALONE, EmbeddedEngine
from tests.authorization.questions import SETTINGS as AUTHORIZATION
from tests.authorization.questions import SUPERUSER, token
from tests.parity.pulsar import VERSION, LocalPulsar
from tests.server.conftest import Running, running_on
from tests.websocket.conversations import CONVERSATIONS, held

RECORDED = Path(__file__).parent / f"pulsar-{VERSION}.json"

_BOTH = {"brokerDeleteInactiveTopicsEnabled": "false", "maxMessageSize": "700000"}
SETTINGS = {"webSocketServiceEnabled": "true", **_BOTH}


def recorded() -> dict[str, list[Any]]:
    """What came back in each conversation, as the file has it."""
    found: dict[str, list[Any]] = json.loads(RECORDED.read_text())
    return found


def standalone() -> EmbeddedEngine:
    """The engine of `magnetar serve`, with the settings of the real one."""
    own = {"namespacesMustExist": "true", **_BOTH}
    return EmbeddedEngine(settings=own, begins_with=STANDALONE)


def address_of(server: Running) -> str:
    """The host and the port of a server's web service."""
    return str(server.server.admin_url).partition("://")[2].replace("localhost", "127.0.0.1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pulsar", default=VERSION)
    parser.add_argument("--compare", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalPulsar(Path(folder), SETTINGS, given.pulsar) as broker:
        said = {name: held(f"127.0.0.1:{broker.ports.admin}", name) for name in CONVERSATIONS}
    own = {
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token(SUPERUSER)}",
    }
    protected = LocalPulsar(Path(folder), SETTINGS | AUTHORIZATION | own, given.pulsar, token(SUPERUSER))
    with protected as broker:
        said["roles"] = held(f"127.0.0.1:{broker.ports.admin}", "roles")
    if not given.compare:
        lines = ",\n".join(
            f'"{name}": [\n' + ",\n".join(json.dumps(each, ensure_ascii=False) for each in heard) + "\n]"
            for name, heard in said.items()
        )
        RECORDED.write_text(f"{{\n{lines}\n}}\n")
        return
    with running_on(standalone) as server:
        del said["roles"]  # the test holds it with a server that has tokens
        for name, heard in said.items():
            for real, ours in zip(heard, held(address_of(server), name), strict=False):
                if real != ours:
                    print(f"{name}\n  {real}\n  {ours}")


if __name__ == "__main__":
    main()
