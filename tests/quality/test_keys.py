"""Keys that are not UTF-8 never name a topic, and nothing of them is lost."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.effects import Quarantined
from schemas.keys import NOT_UTF8, key_of, topic_of
from streaming.broker.names import is_topic_name
from streaming.log.files import read_log
from tests.broker.kit import Run
from tests.quality.helpers import GOOD, TOPIC, value

keys = st.binary(max_size=30) | st.text(max_size=30).map(str.encode) | st.binary(max_size=4).map(
    lambda rest: NOT_UTF8.encode() + rest.hex().encode()
)  # fmt: skip


@given(keys)
def test_a_topic_has_one_key(key: bytes) -> None:
    topic = topic_of(key)
    assert key_of(topic) == (key or None)
    if topic is not None and topic.startswith(NOT_UTF8):
        assert not is_topic_name(topic)
    elif topic is not None:
        assert topic.encode() == key


@pytest.mark.parametrize("kind", GOOD)
def test_whatever_the_command_its_record_is_quarantined(kind: str) -> None:
    run = Run()
    (row,) = run.raw(value(kind), topic_of(b"\xff\x00"))
    assert isinstance(row, Quarantined)
    assert (row.topic, row.rule) == (f"{NOT_UTF8}ff00", "key_encoding")
    assert not run.broker.topic_names()


def test_parquet_may_have_topics_as_bytes(tmp_path: Path) -> None:
    log = pa.table({"topic": [TOPIC.encode(), b"\xff", b"", None], "value": [value("TICK")] * 4})
    pq.write_table(log, tmp_path / "log.parquet")
    assert read_log(tmp_path / "log.parquet")["topic"].to_pylist() == [TOPIC, f"{NOT_UTF8}ff", None, None]


# -- names of topics


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("persistent://public/default/t", True),
        ("non-persistent://a-b=c:d.e_F9/n.../t-partition-0", True),
        ("persistent://public/default/any thing, ü, %00, *?#&", True),
        ("persistent://public/default/...", True),
        ("persistent://public/default/a\0b\nc", True),
        ("persistent://public/default/..", False),
        ("persistent://public/default/.", False),
        ("persistent://public/default/", False),
        ("persistent://public/default/ \t\n", False),
        ("persistent://public/cluster/default/t", True),  # a name of Pulsar 1
        ("persistent://public/cluster/default/a/b", True),
        ("persistent://public/cluster/default/", False),
        ("persistent://public/cluster/def ault/t", False),
        ("persistent://public/cluster//t", False),
        ("persistent://public//t", False),
        ("persistent:///default/t", False),
        ("persistent://../default/t", False),
        ("persistent://public/./t", False),
        ("persistent://pub lic/default/t", False),
        ("persistent://pub\nlic/default/t", False),
        ("persistent://public/default\n/t", False),
        ("persistent://public/def\0ault/t", False),
        ("persistent://public/d\u00fc/t", False),
        ("persistent://public/default\u0660/t", False),
        ("Persistent://public/default/t", False),
        ("public/default/t", False),
        ("t", False),
        ("", False),
    ],
)
def test_which_names_are_topic_names(name: str, valid: bool) -> None:
    assert is_topic_name(name) == valid
    if name:
        run = Run()
        run.raw(value("PUBLISH"), name)
        assert run.broker.topic_names() == ([name] if valid else [])
        run.raw(value("PRODUCER"), name)
        assert run.broker.topic_names() == ([name] if valid else [])


PART = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=12)


@given(PART, PART, st.text(min_size=1, max_size=12))
def test_tenant_and_namespace_are_named_entities(tenant: str, namespace: str, name: str) -> None:
    if is_topic_name(f"persistent://{tenant}/{namespace}/{name}"):
        assert re.fullmatch(r"[-=:.\w]+", tenant, re.ASCII)
        assert re.fullmatch(r"[-=:.\w]+", namespace, re.ASCII)
        assert name.strip()
