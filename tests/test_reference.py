"""The reference in `docs/` and the JSON Schema say what the code says, and say it of everything."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import jsonschema
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas import commands as c
from schemas import effect_fields
from schemas.commands.control import Profile
from schemas.effects import KINDS, Tick
from schemas.outputs import IDENTITY, OUTPUT
from schemas.records import RECORD
from streaming.answers.fates import Outcome
from streaming.answers.whatif.answer import DIFFERENCES, SERIES, SUMMARY, Totals
from streaming.broker import admin_table
from streaming.broker.admin_calls import CALLS
from streaming.broker.admin_table import Call
from streaming.broker.config import PROFILE_OF, PROFILES, ServiceConfiguration, changes, configuration
from streaming.broker.policies.admin_calls import NAMESPACE_CALLS, TOPIC_CALLS
from streaming.broker.policies.hierarchy import (
    BacklogQuota,
    DispatchRate,
    Policies,
    PublishRate,
    RetentionPolicies,
    SubscribeRate,
)
from streaming.jobs.replay import replay_in_process
from streaming.quality.suites import FOLDER
from streaming.traces import RECORDED
from streaming.traces.importer import import_traces
from tests.broker.kit import START
from tests.state.lives import lives
from tools import example
from tools.descriptions import descriptions, doc, fields
from tools.json_schema import COORDINATES, command_schema
from tools.reference import FILES, PARTS, ROOT, commands
from tools.suites import suites
from tools.support import support

COMMANDS = [c.Publish, *get_args(c.AnyCommand)]
STRUCTURES = [
    each
    for each in vars(effect_fields).values()
    if isinstance(each, type) and issubclass(each, effect_fields.Fields)
]


# All tests are collected for support.md: test_support.py compares it.
@pytest.mark.parametrize("file", [file for file, write in FILES.items() if write is not support])
def test_it_is_fresh(file: str) -> None:
    assert (ROOT / file).read_text() == FILES[file](), "run `make docs`"


@pytest.mark.parametrize(
    "struct",
    [
        *COMMANDS,
        *PARTS,
        *STRUCTURES,
        ServiceConfiguration,
        Policies,
        BacklogQuota,
        RetentionPolicies,
        DispatchRate,
        PublishRate,
        SubscribeRate,
    ],
)
def test_every_structure_and_field_has_a_description(struct: type[msgspec.Struct]) -> None:
    assert not (struct.__doc__ or "").startswith(f"{struct.__name__}("), "no docstring of its own"
    assert [field.name for field in fields(struct) if not field.description.endswith(".")] == []


@pytest.mark.parametrize("effect", KINDS)
def test_every_kind_has_a_description_and_describes_no_other_columns(effect: type[Any]) -> None:
    assert not (effect.__doc__ or "").startswith(f"{effect.__name__}("), "no docstring of its own"
    assert descriptions(effect).keys() <= set(effect._fields) <= set(OUTPUT.names)


def test_every_admin_call_has_a_description_and_is_on_the_page() -> None:
    page, policies = commands(), {*NAMESPACE_CALLS.calls, *TOPIC_CALLS.calls}
    assert [call[:2] for call in CALLS if not doc(call.handler).endswith(".")] == []
    assert [
        call[:2]
        for call in CALLS
        if not (
            re.search(rf"[`/]{call.path.rpartition('/')[2]}`", page)
            if call in policies
            else any(f"`{each}`" in page for each in _written(call))
        )
    ] == []


def _written(call: Call[Any]) -> Iterator[str]:
    """A call as the page may have it, whole or below what its section is about."""
    for below in ("", admin_table.NAMESPACE, admin_table.TOPIC, admin_table.SCHEMAS):
        if call.path.startswith(below):
            yield f"{call.method} {call.path.removeprefix(below)}".strip()


@pytest.mark.parametrize("column", [*OUTPUT, *RECORD], ids=lambda column: column.name)
def test_every_column_has_a_description(column: Any) -> None:
    assert column.metadata[b"doc"].endswith(b".") or column.metadata[b"doc"].endswith("…".encode())


def test_every_part_of_a_command_is_on_the_page() -> None:
    public = {each for each in vars(c).values() if isinstance(each, type) and issubclass(each, c.Part)}
    assert set(PARTS) == public - {c.Part}


# -- what the pages say of columns and defaults -------------------------------------------------------------------


def documented() -> dict[tuple[str, str], str]:
    """(Kind, column) → when docs/reference/outputs.md says that it is filled."""
    found: dict[tuple[str, str], str] = {}
    for section in re.split(
        r"^### ", (ROOT / "docs" / "reference" / "outputs.md").read_text(), flags=re.MULTILINE
    )[1:]:
        kind, _, text = section.partition("\n")
        for head, *rows in tables(text):
            if "filled" in head:
                found |= {(kind, row[0].strip("`")): row[head.index("filled")] for row in rows}
    return found


def tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of a Markdown text, as rows of cells; the head comes first."""
    for found in re.findall(r"^(?:\|.*\|\n)+", text, re.MULTILINE):
        lines = [re.split(r" ?(?<!\\)\| ?", line)[1:-1] for line in found.splitlines()]
        yield [lines[0], *lines[2:]]


RARE: list[tuple[str | None, bytes]] = [
    (topic, command if isinstance(command, bytes) else json.dumps(command).encode())
    for topic, command in (
        (None, {"command": "BROKER_CONFIG", "settings": {"managedLedgerMaxEntriesPerLedger": 2, "managedLedgerMinLedgerRolloverTimeMinutes": 0}}),
        (None, {"command": "ADMIN", "method": "POST", "path": "/namespaces/a/b/compact"}),
        (None, b"no command"),
        ("persistent://a/b/t", {"command": "GET_SCHEMA", "connection": "c", "request_id": 1}),
        ("persistent://a/no namespace/t", {"command": "LOOKUP", "connection": "c", "request_id": 1}),
        ("persistent://a/no namespace/t", {"command": "GET_OR_CREATE_SCHEMA", "connection": "c", "request_id": 1,
                                           "schema": {"name": "s", "type": "String"}}),
        ("persistent://a/b/t", {"command": "SUBSCRIBE", "connection": "c", "consumer_id": 0, "request_id": 2, "subscription": "reader",
                                "subType": "Exclusive", "durable": False, "initialPosition": "Earliest"}),
        *(("persistent://a/b/t", {"producer": "p", "sequence_id": number, "payload": "x"}) for number in range(5)),
        (None, {"command": "RUN_CHECK", "check": "consumedLedgers"}),
        ("persistent://a/b/u", {"command": "SUBSCRIBE", "connection": "c", "consumer_id": 1, "request_id": 3, "subscription": "s",
                                "subType": "Shared"}),
        *(("persistent://a/b/u", {"producer": "p", "sequence_id": number, "payload": "x"}) for number in range(5)),
        ("persistent://a/b/u", {"command": "ACK", "connection": "c", "consumer_id": 1, "request_id": 4, "ack_type": "Individual",
                                "txnid_least_bits": 1, "message_id": [{"ledgerId": 1, "entryId": 0}]}),
        ("persistent://a/b/u", {"command": "ADMIN", "method": "DELETE", "path": "/persistent/a/b/u/truncate"}),
    )
]  # fmt: skip
"""Records whose rows have what is rare in other traffic."""


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int, int]]:
    """(Kind, column) → how many nulls and how many values came out of recorded and synthetic traffic."""
    folder = tmp_path_factory.mktemp("observed")
    import_traces([RECORDED], folder / "traces.jsonl")
    logs = [[*life.before, *life.after] for life in lives().values()]
    logs.append([(START + number, topic, value) for number, (topic, value) in enumerate(RARE)])
    synthetic = [
        [
            {"partition": 0, "offset": offset, "timestamp": timestamp, "topic": topic, "value": value}
            for offset, (timestamp, topic, value) in enumerate(log)
        ]
        for log in logs
    ]
    found: Counter[tuple[str, str, bool]] = Counter()
    for name, log in (
        ("traces", folder / "traces.jsonl"),
        *((f"life {number}", pa.Table.from_pylist(log, RECORD)) for number, log in enumerate(synthetic)),
        ("example", example.LOG),
        ("transactions", example.TRANSACTIONS),
    ):
        replay_in_process(log, folder / name)
        for kind in KINDS.values():
            for file in (folder / name / "tables" / f"kind={kind}").glob("*.parquet"):
                rows = pq.read_table(file, partitioning=None)
                for column in rows.column_names:
                    found[kind, column, True] += rows[column].null_count
                    found[kind, column, False] += len(rows) - rows[column].null_count
    tick = example.rows()[KINDS[Tick]].row  # only the trigger of a live query ticks
    found.update((KINDS[Tick], column, value is None) for column, value in tick.items())
    return {
        (kind, column): (found[kind, column, True], found[kind, column, False])
        for kind, column, _ in [*found]
    }


COMMON = {*IDENTITY, "clock"}


@pytest.mark.parametrize("kind", KINDS.values())
def test_columns_are_filled_as_documented(
    kind: str, observed: dict[tuple[str, str], tuple[int, int]]
) -> None:
    """The page names every column of the table and no other, and says rightly which can be null."""
    said = {column: filled for (of, column), filled in documented().items() if of == kind}
    seen = {
        column: counts for (of, column), counts in observed.items() if of == kind and column not in COMMON
    }
    assert said.keys() == seen.keys()
    truth = {
        column: "never" if not values else "not always" if nulls else "always"
        for column, (nulls, values) in seen.items()
    }
    assert said == truth


def test_settings_have_the_documented_defaults() -> None:
    """The pages' defaults are those of the configurations that a broker gets."""
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    said: dict[str, dict[str, Any]] = {profile: {} for profile in PROFILES}
    for head, *rows in tables(page):
        if not {*PROFILES} <= {*head}:
            continue
        for row in rows:
            for profile in PROFILES:
                text = row[head.index(profile)]
                said[profile][row[0].strip("`")] = (
                    text.strip("*") if "of them" in text else json.loads(text.strip("*`"))
                )
    for profile in PROFILES:
        given = configuration(profile, {})
        truth = {name: getattr(given, name) for name in given.__struct_fields__ if name != "profile"}
        for name in ("missingAdminCalls", "missingAdminFields"):
            if len(missing := truth[name]) > 80:
                truth[name] = f"{missing.count(',') + 1} of them"
        assert said[profile] == json.loads(msgspec.json.encode(truth))


_SETTING = re.compile(r"`(\w+)`(?: (\S+) / ([^\s,]+))?")
"""A setting in a table of profiles.md, with its values in two profiles. A list as a value is left out."""


def test_profiles_has_a_row_for_each_setting_that_differs() -> None:
    """Each table compares two profiles, as its head says: it has the settings that differ between them, with the values of both."""
    page = (ROOT / "docs" / "reference" / "profiles.md").read_text()
    compared: dict[tuple[Profile, Profile], dict[str, tuple[str, str]]] = {}
    for head, *rows in tables(page):
        pair = re.fullmatch(r"setting \((\S+) / (\S+)\)", head[-1])
        if pair is not None:
            first, second = (PROFILE_OF[each] for each in pair.groups())
            compared[first, second] = {
                name: values for row in rows for name, *values in _SETTING.findall(row[-1])
            }
    assert compared.keys() == {("4.0", "4.2"), ("3.0", "4.0"), ("2.10", "3.0"), ("2.x", "4.0")}
    for (before, after), named in compared.items():
        differ = changes(before, after)
        if before == "2.x":  # it has what 2.10 has, but for the articles
            differ = {name: differ[name] for name in differ if name in changes("2.x", "2.10")}
        assert differ.keys() - named.keys() == set(), (before, after)
        for name, said in named.items():
            assert all(said) or name.startswith("missing"), f"{name} has no values"
            values = [str(getattr(configuration(profile, {}), name)) for profile in (before, after)]
            for value, text in zip(values, said, strict=True):
                shown = value.lower() if value in ("True", "False") else value.replace("-", "−")
                end = text.removeprefix("…")
                assert shown.endswith(end) if end != text else text in ("", shown), (name, before, after)
    only = page[page.index("Only `5.0`") :]
    only = only[: only.index("\n\n")]
    assert changes("4.2", "5.0").keys() == set(re.findall(r"`(\w{4,})`", only))


# -- the example log ----------------------------------------------------------------------------------------------


def value(record: dict[str, Any]) -> bytes:
    """A record of JSON Lines without its coordinates."""
    return json.dumps({name: value for name, value in record.items() if name not in COORDINATES}).encode()


def test_every_command_has_an_example() -> None:
    expected = {example.SHORT_FORM} | {each.__struct_config__.tag for each in get_args(c.AnyCommand)}
    assert example.commands().keys() == expected
    for line in example.commands().values():
        c.decode(value(json.loads(line)))


def test_every_kind_has_an_example() -> None:
    assert [*example.rows()] == [*KINDS.values()]


def test_the_example_rows_are_the_same_each_time() -> None:
    assert example.rows.__wrapped__() == example.rows()


# -- the JSON Schema ----------------------------------------------------------------------------------------------


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(command_schema())


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(command_schema())


def test_the_schema_knows_the_coordinates() -> None:
    assert {*COORDINATES, "value"} == set(RECORD.names)


@pytest.mark.parametrize("number", range(1, len(example.records()) + 1))
def test_schema_and_decoder_agree_on_the_example_log(number: int) -> None:
    record = json.loads(example.records()[number - 1])
    try:
        c.decode(value(record))
    except c.MalformedCommand:
        assert not validator().is_valid(record)
    else:
        validator().validate(record)


TOPIC = {"topic": "persistent://a/b/c", "timestamp": 1}
GOOD: list[dict[str, Any]] = [
    {"producer": "p", "sequence_id": 0},
    TOPIC | {"producer": "p", "sequence_id": 0, "payload_bytes": "AAEC", "properties": {"a": "b"}, "key": None},
    TOPIC | {"command": "ACK", "consumer_id": 0, "ack_type": "Individual", "message_id": [{"ledgerId": 2**64 - 1, "entryId": 0}]},
    {"partition": 3, "offset": 7, "topic": None, "command": "TICK"},
    {"command": "ADMIN", "method": "POST", "path": "/x", "body": {"any": ["thing", 1.5]}},
    {"command": "BROKER_CONFIG", "settings": {"a": 1, "b": "2", "c": True, "d": 0.5}},
]  # fmt: skip
BAD: dict[str, dict[str, Any]] = {
    "no such command": {"command": "SENT"},
    "a field is missing": TOPIC | {"producer": "p"},
    "a field of the command is missing": TOPIC | {"command": "FLOW", "consumer_id": 0},
    "a misspelled field": TOPIC | {"command": "FLOW", "consumer_id": 0, "messagePermits": 1, "mesagePermits": 1},
    "a field of another command": {"command": "TICK", "messagePermits": 1},
    "a wrong type": TOPIC | {"command": "FLOW", "consumer_id": "0", "messagePermits": 1},
    "more than 32 bits": TOPIC | {"command": "FLOW", "consumer_id": 0, "messagePermits": 2**31},
    "more than 64 bits": {"producer": "p", "sequence_id": 2**63},
    "below the least": {"command": "FAULT", "fault": "FailWrites", "count": -1},
    "no such choice": {"command": "RUN_CHECK", "check": "everything"},
    "an unknown field in a part": TOPIC | {"command": "SEEK", "consumer_id": 0, "request_id": 0, "message_id": {"ledgerId": 1, "entryId": 0, "x": 1}},
    "text and bytes": {"producer": "p", "sequence_id": 0, "payload": "a", "payload_bytes": "AAEC"},
    "null for a number": {"producer": "p", "sequence_id": None},
    "a fraction": {"producer": "p", "sequence_id": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("record", GOOD)
def test_a_good_record(record: dict[str, Any]) -> None:
    c.decode(value(record))
    validator().validate(record)


@pytest.mark.parametrize("record", BAD.values(), ids=BAD)
def test_a_bad_record(record: dict[str, Any]) -> None:
    with pytest.raises(c.MalformedCommand):
        c.decode(value(record))
    assert not validator().is_valid(record)


@pytest.mark.parametrize(
    "coordinates", [{"partition": -1}, {"offset": "0"}, {"timestamp": 1.5}, {"topic": 7}, {"value": ""}]
)
def test_a_bad_coordinate(coordinates: dict[str, Any]) -> None:
    assert not validator().is_valid(coordinates | {"command": "TICK"})


def test_an_error_names_the_field_alone() -> None:
    (error,) = validator().iter_errors(
        TOPIC | {"command": "FLOW", "consumer_id": 0, "messagePermits": "many"}
    )
    assert (error.json_path, error.message) == ("$.messagePermits", "'many' is not of type 'integer'")


def test_the_expectation_suites_are_made_of_the_rules() -> None:
    """`make docs` writes them. A new kind of command or row has its suite by itself."""
    found = {path.relative_to(FOLDER): path.read_text() for path in FOLDER.rglob("*.json")}
    assert found == suites()


# -- the Python API -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("totals", Totals.__struct_fields__),
        *(
            (name, tuple(schema.names))
            for name, schema in (("summary", SUMMARY), ("differences", DIFFERENCES), ("series", SERIES))
        ),
    ],
)
def test_the_page_names_what_a_what_if_has(table: str, names: tuple[str, ...]) -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    _, found, text = page.partition(f"\n`{table}` has ")
    assert found
    _, *rows = next(tables(text))
    assert sorted(each for row in rows for each in re.findall(r"`(\w+)`", row[0])) == sorted(names)


def test_the_page_names_each_outcome() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    said = re.findall(r"`([\w ]+)`", page.partition("\n`outcome` is one of ")[2].partition(":")[0])
    assert said == [*get_args(Outcome)]
