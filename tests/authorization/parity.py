"""`python -m tests.authorization.parity`: random changes of permissions on a real Pulsar 4.0.7 and on `magnetar serve`, compared step by step.

Exits with 1 if a difference is stable (it occurs each time). `--record FILE` keeps what the real broker said.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from uuid import uuid4

from streaming.server.authentication import TokenAuthentication
from streaming.server.server import Security
from tests.authorization.lives import QUIET, plan, play
from tests.authorization.questions import SETTINGS, SUPERUSER, Admin, token
from tests.parity.pulsar import LocalPulsar
from tests.server.conftest import Running, running

SECURITY = Security(None, TokenAuthentication.with_secret(SETTINGS["tokenSecretKey"]), settings=SETTINGS)


def there(broker: LocalPulsar, seed: int) -> list[str]:
    """What a real broker says to a seed, in a tenant of its own."""
    admin = Admin(f"http://127.0.0.1:{broker.ports.admin}")
    return [*play(admin, f"127.0.0.1:{broker.ports.broker}", f"t{uuid4().hex[:8]}", plan(seed))]


def here(server: Running, seed: int, quiet: float = QUIET) -> list[str]:
    """What ours says. `quiet`: see `play`."""
    admin = Admin(str(server.server.admin_url).replace("localhost", "127.0.0.1"))
    return [*play(admin, server.service_url.partition("://")[2], f"t{uuid4().hex[:8]}", plan(seed), quiet)]


def first(recorded: list[str], ours: list[str]) -> str | None:
    """The first step of which two brokers say something else, with both answers. None: there is none."""
    for number, (one, other) in enumerate(zip(recorded, ours, strict=True), 1):
        if one != other:
            kind, step, *said = json.loads(one)
            return f"step {number} {kind} {step}: recorded {said}, ours {json.loads(other)[2:]}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.authorization.parity", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--record", type=Path, help="write the answers of the real broker to a file", metavar="FILE"
    )
    asked = parser.parse_args()
    words, kept = Counter[str](), dict[int, list[str]]()
    own = {
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token(SUPERUSER)}",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPulsar(Path(folder) / "pulsar", SETTINGS | own, token=token(SUPERUSER)) as broker,
        running(security=SECURITY, namespacesMustExist=True, defaultNumberOfNamespaceBundles=1) as server,
    ):
        for seed in range(asked.first, asked.first + asked.seeds):
            kept[seed], ours = there(broker, seed), here(server, seed)
            found = first(kept[seed], ours)
            again = found is not None and first(there(broker, seed), ours)
            word = "equal" if found is None else "DIFFERS" if found == again else "race"
            words[word] += 1
            print(f"authorization {seed}: {word}{f': {found}' if found else ''}", flush=True)
    if asked.record is not None:
        asked.record.write_text(json.dumps(kept, indent=0) + "\n")
    print(f"authorization: {', '.join(f'{count} {word}' for word, count in words.items())}")
    return 1 if words["DIFFERS"] else 0


if __name__ == "__main__":
    sys.exit(main())
