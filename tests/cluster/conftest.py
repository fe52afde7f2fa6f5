"""An S3 server for the tests here."""

from collections.abc import Iterator

import pytest

from tests.cluster.s3 import BUCKET, LocalS3, gateway


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalS3]:
    if gateway() is None:
        pytest.skip("versitygw is missing: make check-cluster builds it")
    with LocalS3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The URL of a folder on the server that belongs to the test. The environment has what its clients need."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{request.node.name}".replace("[", "-").replace("]", "")
