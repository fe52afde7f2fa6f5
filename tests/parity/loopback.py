"""A network of this process's own that has loopback only, for servers that bind every address."""

import fcntl
import os
import shutil
import socket
import struct
import sys

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_ENTERED = "MAGNETAR_LOOPBACK_ONLY"


def enter_namespace(module: str = "tests.parity") -> None:
    """Start this program, which is `module`, again in a network namespace with nothing but loopback, unless it is in one.

    Raises `FileNotFoundError` if there is no unshare (util-linux).
    """
    if _ENTERED in os.environ:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        return
    unshare = shutil.which("unshare")
    if unshare is None:
        raise FileNotFoundError(
            "this version's ZooKeeper binds every address, so it runs in a network namespace: install unshare (util-linux)"
        )
    arguments = [unshare, "--map-root-user", "--net", sys.executable, "-m", module, *sys.argv[1:]]
    os.execve(unshare, arguments, os.environ | {_ENTERED: "1"})
