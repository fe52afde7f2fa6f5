"""Record what a real Pulsar with authorization says: ``python -m tests.authorization.record``, which takes some minutes."""

import json
import tempfile
from pathlib import Path

from tests.authorization.questions import SETTINGS, SUPERUSER, Admin, everything, token
from tests.parity.pulsar import LocalPulsar

RECORDED = Path(__file__).with_name("pulsar-4.0.7.json")


def lines(found: dict[str, dict[str, object]]) -> str:
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
    own = {
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token(SUPERUSER)}",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPulsar(Path(folder) / "pulsar", SETTINGS | own, token=token(SUPERUSER)) as broker,
    ):
        admin = Admin(f"http://127.0.0.1:{broker.ports.admin}")
        RECORDED.write_text(lines(everything(admin, f"127.0.0.1:{broker.ports.broker}")))


if __name__ == "__main__":
    main()
