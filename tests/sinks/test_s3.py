"""Addresses on S3, and how a file is published there. What a server says to it is in tests/cluster."""

import pytest
from pyarrow import fs

from sinks import storage
from sinks.s3 import S3Url
from sinks.storage import BadUrl, Storage, within

VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_environment_says_where_the_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:7070")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    url = S3Url.parse("s3://bucket/some/folder/")
    assert url == S3Url("bucket/some/folder", "eu-central-1", "http://127.0.0.1:7070", None, None)
    assert url.delta() == {
        "aws_conditional_put": "etag",
        "aws_region": "eu-central-1",
        "aws_endpoint_url": "http://127.0.0.1:7070",
        "aws_allow_http": "true",
    }
    assert url.filesystem().region == "eu-central-1"


def test_a_url_may_say_it_itself() -> None:
    url = S3Url.parse("s3://key:a%2Fb@bucket/x?region=eu-west-1&endpoint_override=host:9000&scheme=http")
    assert url == S3Url("bucket/x", "eu-west-1", "http://host:9000", "key", "a/b")
    assert url.delta()["aws_secret_access_key"] == "a/b"


def test_amazon_needs_no_endpoint() -> None:
    url = S3Url.parse("s3://bucket/x?region=eu-west-1")
    assert url is not None
    assert url.delta() == {"aws_conditional_put": "etag", "aws_region": "eu-west-1"}


@pytest.mark.parametrize("url", ["/s3", "gs://bucket/x", "file:///x"])
def test_other_addresses_are_not_on_s3(url: str) -> None:
    assert S3Url.parse(url) is None


@pytest.mark.parametrize(
    ("url", "said"),
    [("s3://bucket/x?regoin=eu", "'regoin' is not an option"), ("s3:///x", "names no bucket")],
)
def test_a_wrong_address_is_refused(url: str, said: str) -> None:
    with pytest.raises(BadUrl, match=said):
        Storage(url).files("a")


@pytest.mark.parametrize("given", ["many", "0", "-1", "1e9", "101", "²"])
def test_a_wrong_number_of_attempts_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", given)
    with pytest.raises(BadUrl, match=f"AWS_MAX_ATTEMPTS is '{given}' and must be a number from 1 to 100"):
        Storage("s3://bucket/x?region=eu-west-1").files("a")


@pytest.mark.parametrize(
    ("url", "inner"),
    [
        ("s3://bucket/store?region=eu", "s3://bucket/store/tables?region=eu"),
        ("s3://bucket/store/", "s3://bucket/store/tables"),
        ("/data/really?", "/data/really?/tables"),
    ],
)
def test_a_folder_within_keeps_the_query(url: str, inner: str) -> None:
    assert within(url, "tables") == inner


def test_a_write_that_fails_uploads_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("target") / "file"
    target.write_bytes(b"before")

    def fail(stream: object) -> None:
        stream.write(b"half")  # type: ignore[attr-defined]
        raise RuntimeError

    local = fs.LocalFileSystem()
    with pytest.raises(RuntimeError):
        storage._upload(local, lambda: local, str(target), fail)
    assert target.read_bytes() == b"before"
    for text in (b"", b"after", b"large" * (1 << 20)):
        storage._upload(local, lambda: local, str(target), lambda stream, text=text: stream.write(text))  # type: ignore[misc]
        assert target.read_bytes() == text
