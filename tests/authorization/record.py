"""Record what a real Pulsar with authorization says: ``python -m tests.authorization.record [--pulsar VERSION]``, which takes some minutes.

The file of 4.0.7 has all answers, those of other versions what differs from it.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.authorization.questions import SETTINGS, SUPERUSER, Admin, everything, token
from tests.parity.loopback import enter_namespace
from tests.parity.pulsar import VERSION, LocalPulsar, has_zookeeper

Answers = dict[str, dict[str, Any]]
"""Part → question → answer."""


def _path(version: str) -> Path:
    return Path(__file__).with_name(f"pulsar-{version}.json")


OTHERS = sorted(
    path.stem.removeprefix("pulsar-")
    for path in Path(__file__).parent.glob("pulsar-*.json")
    if path != _path(VERSION)
)
"""The other versions that were recorded."""


def recorded(version: str = VERSION) -> Answers:
    """The answers of a version."""
    found: Answers = json.loads(_path(VERSION).read_text())
    if version != VERSION:
        for part, answers in differing(version).items():
            found[part] |= answers
    return found


def differing(version: str) -> Answers:
    """The answers of another version that differ."""
    found: Answers = json.loads(_path(version).read_text())
    return found


def lines(found: Answers) -> str:
    """Answers as JSON with a line for each question."""
    parts = [
        f"{json.dumps(part)}: {{\n"
        + ",\n".join(f" {json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items())
        + "\n}"
        for part, answers in found.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pulsar", default=VERSION, metavar="VERSION")
    version = parser.parse_args().pulsar
    if has_zookeeper(version):
        enter_namespace("tests.authorization.record")
    own = {
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token(SUPERUSER)}",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPulsar(Path(folder) / "pulsar", SETTINGS | own, version, token(SUPERUSER)) as broker,
    ):
        admin = Admin(f"http://127.0.0.1:{broker.ports.admin}")
        found = everything(admin, f"127.0.0.1:{broker.ports.broker}")
    if version != VERSION:
        usual = recorded()
        found = {
            part: {what: answer for what, answer in answers.items() if usual[part].get(what) != answer}
            for part, answers in found.items()
        }
    _path(version).write_text(lines(found))


if __name__ == "__main__":
    main()
