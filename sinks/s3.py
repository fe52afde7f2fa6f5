"""Addresses on S3, as pyarrow and as Delta Lake's library want them.

Endpoint, region and credentials come from the environment, by the names that AWS's own tools read: ``AWS_ENDPOINT_URL`` (of another
server than AWS), ``AWS_REGION``, ``AWS_ACCESS_KEY_ID`` and the rest. The query of a URL goes first: ``?region=eu-central-1``,
``&endpoint_override=…``, ``&scheme=http``, as pyarrow reads it.
"""

import os
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from pyarrow import fs

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

    def filesystem(self) -> fs.S3FileSystem:
        """pyarrow's file system, on which `path` is a path. Raises `OSError`."""
        region = self.region
        if region is None and self.endpoint is None:
            region = fs.resolve_s3_region(self.path.partition("/")[0])
        # A small file is then one request instead of three.
        return fs.S3FileSystem(
            access_key=self.key,
            secret_key=self.secret,
            region=region,
            endpoint_override=self.endpoint,
            allow_delayed_open=True,
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


def environment(*names: str) -> str | None:
    """The value of the first environment variable that is set."""
    return next((value for name in names if (value := os.environ.get(name))), None)
