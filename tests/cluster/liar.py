"""A proxy before an S3 server that lies once: it answers a request of some kind, in well-formed HTTP, with what is not so."""

import http.client
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple, Self

from streaming.kafka.local import HOST


class Answer(NamedTuple):
    """`status`, headers and body of an answer of S3."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def with_body(self, body: bytes) -> "Answer":
        kept = [each for each in self.headers if each[0].lower() not in _OF_BODY]
        return Answer(self.status, kept, body)


_OF_BODY = {
    "content-length",
    "content-md5",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc64nvme",
    "transfer-encoding",
}
_LISTED = re.compile(rb"<(Contents|CommonPrefixes)>.*?</\1>", re.DOTALL)

Lie = Callable[[Callable[[], Answer]], Answer]
"""What is answered in place of what `ask` gets from S3."""


def _garbled(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data


def _replaced(change: Callable[[bytes], bytes]) -> Lie:
    def lie(ask: Callable[[], Answer]) -> Answer:
        answer = ask()
        return answer.with_body(change(answer.body))

    return lie


LIES: dict[str, tuple[str, Lie]] = {
    "a write is confirmed, and lost": ("PUT", lambda ask: Answer(200, [("ETag", '"0123456789abcdef"')], b"")),
    "a file that exists does not": ("HEAD", lambda ask: Answer(404, [], b"")),
    "a file is empty": ("GET", _replaced(lambda data: b"")),
    "a file is cut": ("GET", _replaced(lambda data: data[: len(data) // 2])),
    "a bit of a file is another": ("GET", _replaced(_garbled)),
    "a file is of NULs": ("GET", _replaced(lambda data: bytes(len(data)))),
    "a folder is empty": ("LIST", _replaced(lambda data: _LISTED.sub(b"", data))),
    "a deletion is confirmed, and not done": ("DELETE", lambda ask: Answer(204, [], b"")),
}
"""By name: the kind of request, and the lie."""


class Liar:
    """Lies to the request number `at` of the kind that the lie is about (None: to none). `asked` counts requests of that kind."""

    def __init__(self, port: int, lie: str, at: int) -> None:
        """`port`: of the S3 server."""
        self.kind, self._lie = LIES[lie]
        self.asked, self.told = 0, ""
        self.at: int | None = at
        self._lock = threading.Lock()
        liar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            log_message: ClassVar[Any] = lambda *_: None

            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if "chunked" in self.headers.get("Transfer-Encoding", ""):
                    while True:
                        head = self.rfile.readline()
                        size = int(head.partition(b";")[0], 16)
                        body += head + self.rfile.read(size + 2)
                        if not size:
                            break

                def ask() -> Answer:
                    connection = http.client.HTTPConnection(HOST, port)
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        connection.putheader(name, value)
                    connection.endheaders(body)
                    got = connection.getresponse()
                    answer = Answer(got.status, got.getheaders(), got.read())
                    connection.close()
                    return answer

                answer = liar._answer(self.command, self.path, ask)
                self.send_response(answer.status)
                length = str(len(answer.body))
                for name, value in answer.headers:
                    if name.lower() == "content-length" and self.command == "HEAD":
                        length = value
                    elif name.lower() not in _OF_BODY:
                        self.send_header(name, value)
                if answer.status != 204:
                    self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _any

        class Proxy(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Proxy((HOST, 0), Handler)
        self.port: int = self._server.server_address[1]

    def _answer(self, method: str, path: str, ask: Callable[[], Answer]) -> Answer:
        with self._lock:
            kind = "LIST" if method == "GET" and "list-type=" in path else method
            self.asked += kind == self.kind
            lies = kind == self.kind and self.asked - 1 == self.at
            if lies:
                self.told = path
        return self._lie(ask) if lies else ask()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
