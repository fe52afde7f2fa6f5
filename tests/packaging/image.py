"""`python -m tests.packaging.image`: the image of the test double, built of its Dockerfile and run, where no container engine is.

buildah builds it. Its default command is then run as the image says: as its user, in its folder, with a root of its own that is read-only but
for `/tmp`, and in namespaces of its own for processes, mounts and the network. Needs Linux, root, and Debian's packages `buildah` and
`iproute2`. `--base DIR` takes a folder in place of the base image, as `debootstrap` makes one where no registry of images can be reached.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pulsar

ROOT = Path(__file__).parents[2]
NAME = "magnetar-double"
_BASE = "docker.io/library/python:3.11-slim"
_INSIDE = "MAGNETAR_IMAGE_INSIDE"


def main() -> None:
    """Build it, run it, use it, and stop it. Raises an error if anything fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.packaging.image", description=__doc__)
    parser.add_argument("--base", type=Path, metavar="DIR")
    given = parser.parse_args()
    if _INSIDE in os.environ:
        _use()
        return
    pull = "--pull"
    if given.base is not None:
        pull = "--pull-never"
        container = _buildah("from", "scratch")
        _buildah("copy", "--quiet", container, str(given.base), "/")
        _buildah("commit", "--quiet", "--rm", container, _BASE)
    _buildah(
        "build",
        "--isolation",
        "chroot",
        pull,
        "--quiet",
        "--file",
        "deploy/Dockerfile.double",
        "--tag",
        NAME,
        ".",
    )
    command = ["unshare", "--mount", "--net", sys.executable, "-m", "tests.packaging.image"]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {_INSIDE: "1"})


def _use() -> None:
    """In namespaces of mounts and of the network: run the image, be its client, and stop it."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    container = _buildah("from", "--pull-never", NAME)
    try:
        root = _buildah("mount", container)
        config = json.loads(_buildah("inspect", "--type", "container", container))["OCIv1"]["config"]
        for options in (["--bind", root, root], ["-o", "remount,bind,ro", root], ["-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/tmp"],
                        ["-t", "proc", "proc", f"{root}/proc"], ["--bind", "/dev", f"{root}/dev"]):  # fmt: skip
            subprocess.run(["mount", *options], check=True)
        _serve(root, config)
    finally:
        _buildah("rm", container)


def _serve(root: str, config: dict[str, Any]) -> None:
    user, ports = config["User"], sorted(config["ExposedPorts"])
    command = ["unshare", "--pid", "--fork", "--kill-child", f"--root={root}", f"--wd={config['WorkingDir']}", f"--setuid={user}", f"--setgid={user}",
               *config["Entrypoint"], *config["Cmd"]]  # fmt: skip
    environment = dict(each.split("=", 1) for each in config["Env"])
    os.environ["PATH"] += f":{environment['PATH']}"
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        try:
            assert said == {"service_url": "pulsar://localhost:6650", "admin_url": "http://localhost:8080"}
            assert ports == ["6650/tcp", "8080/tcp"]
            assert httpx.get(f"{said['admin_url']}/readyz").status_code == 200
            client = pulsar.Client(said["service_url"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            consumer = client.subscribe("orders", "shop")
            client.create_producer("orders").send(b"an order")
            assert consumer.receive(10_000).data() == b"an order"
            client.close()
        finally:
            (served,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(served), signal.SIGTERM)  # unshare waits for it, and lets no signal through
        assert process.wait(20) == 0
    print(f"{NAME}: built, and served a client as user {user}: {said}")


def _buildah(*command: str) -> str:
    done = subprocess.run(["buildah", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
