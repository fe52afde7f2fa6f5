"""`magnetar quality`: a table in the terminal, and Data Docs that need no network."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from streaming.cli.quality import quality_command
from streaming.jobs.replay import replay_in_process
from streaming.log.files import write_log
from streaming.quality.sink import BROKEN, LIVE
from tests.quality.helpers import TOPIC, great_expectations, value
from tests.spark.helpers import START, log_of, traffic

app = typer.Typer()
app.command()(quality_command)


@pytest.fixture(autouse=True)
def _one_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.quality.gx.GreatExpectations", great_expectations)


def quality(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def no_network(folder: Path) -> list[Path]:
    """The pages of a folder, in which nothing is fetched."""
    pages = sorted(folder.iterdir())
    for page in pages:
        text = page.read_text()
        assert not re.search(
            r"""(?:src|href|action)\s*=\s*["']?\s*(?:https?:)?//|url\(|@import|<script|<link""", text, re.I
        ), page
        assert "http" not in text, page
        for link in re.findall(r'href="([^"#]+)"', text):
            assert (folder / link).exists(), f"{page}: {link}"
    return pages


def test_the_folder_of_a_replay(tmp_path: Path) -> None:
    replay_in_process(traffic(), tmp_path / "out")
    ran = quality(tmp_path / "out")
    assert ran.exit_code == 0, ran.output
    assert "output.SEND_RECEIPT" in ran.output
    assert "all rules hold" in ran.output
    assert "records quarantined by the query" in ran.output
    assert "malformed" in ran.output
    pages = no_network(tmp_path / "out" / "quality")
    names = {page.name for page in pages}
    assert {"index.html", "output.SEND_RECEIPT.html", "output.QUARANTINED.html"} <= names
    page = (tmp_path / "out" / "quality" / "output.SEND_RECEIPT.html").read_text()
    assert "100%" in page
    assert page.count("text-success") > 10


def test_the_store_of_a_live_query(tmp_path: Path) -> None:
    """Its own checks leave samples, results and counts in the folder of the pages, and go on there."""
    replay_in_process(traffic(), tmp_path / "out")
    left = [tmp_path / "out" / name for name in (f"{LIVE}/results.jsonl", f"{BROKEN}/000000001-00000.json")]
    for each in left:
        each.parent.mkdir(parents=True)
        each.write_text("{}")
    for _ in range(2):
        ran = quality(tmp_path / "out")
        assert ran.exit_code == 0, ran.output
    assert [each.read_text() for each in left] == ["{}"] * 2
    (tmp_path / "out" / "quality" / "mine.txt").touch()
    assert "mine.txt" in quality(tmp_path / "out").output


def test_a_column_of_integers_without_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replay_in_process(traffic(), tmp_path / "out")
    path, *_ = (tmp_path / "out" / "tables" / "kind=SEND_RECEIPT").iterdir()
    table = pq.read_table(path)
    place, field = table.schema.get_field_index("entry_id"), table.schema.field("entry_id")
    pq.write_table(table.set_column(place, field, pa.nulls(len(table), field.type)), path)
    ran = quality(tmp_path / "out")
    assert ran.exit_code == 1
    assert "entry_id" in (tmp_path / "out" / "quality" / "output.SEND_RECEIPT.html").read_text()
    told = [each.levelname for each in caplog.records if each.name.startswith("great_expectations")]
    assert "ERROR" not in told  # what it could not render


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_a_log(folder: bool, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    log, docs = tmp_path / "log" / "1.jsonl", tmp_path / "docs"
    bad = [value("PUBLISH", producer=""), value("PUBLISH", sequence_id=-5), value("PUBLISH"), b"rubbish"]
    write_log(log, log_of(*((START, TOPIC, each) for each in bad)))
    ran = quality(log.parent if folder else log, "--docs", docs)
    assert ran.exit_code == 1
    for text in ("input.PUBLISH/producer_length: 1 time", "input.PUBLISH/sequence_id_range: 1 time", "record 1:",
                 "sequence_id is -5", "1 record malformed", "rules are broken"):  # fmt: skip
        assert text in ran.output
    assert [page.name for page in no_network(docs)] == [
        "index.html",
        "input.PUBLISH.html",
        "input.RECORD.html",
    ]
    assert "input.PUBLISH/producer_length: 1" in (docs / "index.html").read_text()
    assert "-5" in (docs / "input.PUBLISH.html").read_text()


def test_partitions_and_offsets_name_a_record(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    write_log(log, traffic(partitions=2))
    ran = quality(log, "--docs", tmp_path / "docs")
    assert ran.exit_code == 1  # it has rubbish
    assert "all rules hold" not in ran.output


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_nothing_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    ran = quality(tmp_path / name)
    assert ran.exit_code == 2
    assert "magnetar: " in ran.output
