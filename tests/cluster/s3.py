"""An S3 server on this machine: the Versity S3 Gateway over a folder, built by `make cluster`.

It is a server that people run in production, not a test double: its writes are atomic, conditional and checked by signature.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from pyarrow import fs

from streaming.kafka.local import HOST, free_port
from tests.e2e.processes import kill_session, wait_until

BUCKET = "magnetar"

_BUILT = Path(__file__).parents[2] / ".venv" / "cluster" / "bin"
_KEY, _SECRET, _REGION = "magnetar", "only-on-this-machine", "us-east-1"


def gateway() -> str | None:
    """The server's binary, or None if nobody built it."""
    return shutil.which("versitygw", path=os.pathsep.join([str(_BUILT), os.environ.get("PATH", "")]))


class LocalS3:
    """A server with one bucket, whose objects are files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What its clients need: the variables that AWS's own tools read."""
        return {
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self.port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Start the server and wait until it answers."""
        binary = gateway()
        assert binary is not None, "versitygw is missing: run `make cluster`, or build it with Go"
        (self.folder / "objects" / BUCKET).mkdir(parents=True, exist_ok=True)
        with (self.folder / "s3.log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary, "--port", f"{HOST}:{self.port}", "--access", _KEY, "--secret", _SECRET, "--region", _REGION,
                 "posix", str(self.folder / "objects")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        wait_until(self._answers, "an S3 server", self._process)

    def filesystem(self) -> fs.S3FileSystem:
        """The server for this process, whatever its environment."""
        return fs.S3FileSystem(
            access_key=_KEY,
            secret_key=_SECRET,
            region=_REGION,
            endpoint_override=f"http://{HOST}:{self.port}",
        )

    def kill(self) -> None:
        """kill −9 of the server. `start` brings it back at the same address, with all that it stored."""
        self.close()
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            kill_session(self._process)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        try:
            return bool(self.filesystem().get_file_info(BUCKET).type == fs.FileType.Directory)
        except OSError:
            return False


@contextmanager
def away(server: LocalS3) -> Iterator[None]:
    """The server is killed, and comes back with all that it stored."""
    server.kill()
    try:
        yield
    finally:
        server.start()
