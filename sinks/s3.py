"""Addresses on S3, as pyarrow and as Delta Lake's library want them.

Endpoint, region and credentials come from the environment, by the names that AWS's own tools read: ``AWS_ENDPOINT_URL`` (of another
server than AWS), ``AWS_REGION``, ``AWS_ACCESS_KEY_ID`` and the rest. The query of a URL goes first: ``?region=eu-central-1``,
``&endpoint_override=…``, ``&scheme=http``, as pyarrow reads it.
"""

import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from pyarrow import fs

ATTEMPTS = 5
"""Of a request that S3 does not answer, or answers with 503, unless ``AWS_MAX_ATTEMPTS`` says another number: after 8 s or so, it fails.
The lease of a store is lost after 15 s (`sinks.lock`), so more attempts would help nobody."""

_MOST_ATTEMPTS = 100

_OPTIONS = {"region", "endpoint_override", "scheme"}


class S3Url(NamedTuple):
    """An address on S3. `path`: the bucket and the key below it. None: the environment decides."""

    path: str
    region: str | None
    endpoint: str | None
    key: str | None
    secret: str | None

    @classmethod
    def parse(cls, url: str) -> "S3Url | None":
        """The address of an ``s3://`` URL, or None for another one. Raises `ValueError` for options that it can't have."""
        parts = urlsplit(url)
        if parts.scheme != "s3":
            return None
        options = dict(parse_qsl(parts.query))
        if unknown := sorted(options.keys() - _OPTIONS):
            raise ValueError(
                f"{unknown[0]!r} is not an option of a store on S3: {', '.join(sorted(_OPTIONS))}"
            )
        if not parts.hostname:
            raise ValueError("it names no bucket")
        bucket = parts.netloc.rpartition("@")[2]
        endpoint = options.get("endpoint_override") or environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        if endpoint is not None and "://" not in endpoint:
            endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
        return cls(
            unquote(f"{bucket}{parts.path}").rstrip("/"),
            options.get("region") or environment("AWS_REGION", "AWS_DEFAULT_REGION"),
            endpoint,
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else None,
        )

    def filesystem(self, *, attempts: int | None = None, delayed: bool = True) -> fs.S3FileSystem:
        """pyarrow's file system, on which `path` is a path. Raises `OSError`, and `ValueError` for a wrong
        ``AWS_MAX_ATTEMPTS``.

        `attempts`: of a request, None: see `ATTEMPTS`. `delayed`: a small file is one request instead of three. A large one needs it
        to be false: if S3 does not answer to its first request and does again to that with which the stream is closed, an empty
        file is published.
        """
        region = self.region
        if region is None and self.endpoint is None:
            region = fs.resolve_s3_region(self.path.partition("/")[0])
        return fs.S3FileSystem(
            access_key=self.key,
            secret_key=self.secret,
            region=region,
            endpoint_override=self.endpoint,
            allow_delayed_open=delayed,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts or _attempts()),
        )

    def delta(self) -> dict[str, str]:
        """Options for Delta Lake's library. A commit of its log creates an object only if there is none of its name."""
        options = {
            "aws_conditional_put": "etag",
            "aws_region": self.region,
            "aws_endpoint_url": self.endpoint,
            "aws_allow_http": "true" if (self.endpoint or "").startswith("http:") else None,
            "aws_access_key_id": self.key,
            "aws_secret_access_key": self.secret,
        }
        return {name: value for name, value in options.items() if value is not None}


_FAILED = re.compile(
    r"AWS Error (\w+) (?:\[[^]]*\] |\([^)]*\) )?during (\w+) operation(?: \([^)]*\))?: ([^\n]*)"
)
_FAILED_IN_DELTA = re.compile(r"Error performing ([A-Z]+) http\S+ in \S+(.*)", re.DOTALL)
_UNCOLOURED = "\x1b[0m"
_CODE = re.compile(r"<Code>(\w+)</Code>")
_AWAY = {
    "INTERNAL_FAILURE", "NETWORK_CONNECTION", "REQUEST_TIMEOUT", "SERVICE_UNAVAILABLE", "SLOW_DOWN", "THROTTLING", "UNKNOWN",
}  # fmt: skip


def failed(text: str) -> str | None:
    """What S3 did, as a clause of a sentence, from the text of an error of pyarrow or Delta Lake's library; None if the error is not
    of S3."""
    found = _FAILED.search(text)
    if found is None:
        return _failed_in_delta(text)
    code, request, why = found.groups()
    why = why.rpartition("; Details: ")[2].rstrip(". ")
    return f"S3 {'did not answer' if code in _AWAY else 'refused a request'} ({request}: {code}, {why})"


def _failed_in_delta(text: str) -> str | None:
    found = _FAILED_IN_DELTA.search(text)
    if found is None:
        return None
    request, why = found.groups()
    if (code := _CODE.search(why)) is not None:
        return f"S3 refused a request ({request}: {code[1]})"
    return f"S3 did not answer ({request}: {why.rpartition('↳')[2].removeprefix(_UNCOLOURED).strip()})"


def _attempts() -> int:
    given = environment("AWS_MAX_ATTEMPTS") or str(ATTEMPTS)
    if not (given.isascii() and given.isdecimal() and 1 <= int(given) <= _MOST_ATTEMPTS):
        raise ValueError(f"AWS_MAX_ATTEMPTS is {given!r} and must be a number from 1 to {_MOST_ATTEMPTS}")
    return int(given)


def environment(*names: str) -> str | None:
    """The value of the first environment variable that is set."""
    return next((value for name in names if (value := os.environ.get(name))), None)
