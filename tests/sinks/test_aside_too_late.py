"""What an operator sets aside of a micro-batch that the query repeats, though the output table has its rows already."""

from pathlib import Path

import pytest

from schemas.effects import SET_ASIDE, TOPIC_SET_ASIDE, Quarantined
from schemas.records import Coordinates
from sinks.tables import DeltaSink
from streaming.fold.records import NoSuchRecord
from streaming.jobs.live_sinks import LiveSinks
from tests.sinks.helpers import TOPIC, output, receipts

pytestmark = pytest.mark.feature("J2")

OTHER = "persistent://public/default/others"
RECORD = Coordinates(0, 101)
"""In the last micro-batch. The first one ends at 100, the last one at 110."""


def crashed(folder: Path, *, committed: bool = True) -> tuple[LiveSinks, Path]:
    """A query whose last micro-batch is in the table, or not, and not committed in the checkpoint. It has set aside record 105 and a topic."""
    store, checkpoint = folder / "store", folder / "ckpt"
    table = DeltaSink(str(store / "tables"))
    aside = [
        Quarantined("t", SET_ASIDE, "by an operator", b"x"),
        Quarantined(OTHER, TOPIC_SET_ASIDE, "by an operator", b""),
    ]
    for number, effects in enumerate([receipts(1, 0, 4), [*receipts(1, 5, 9), *aside]]):
        rows = output(effects, offset=100 * number)
        table.begin(number)
        table.write(number, 0, rows)
        if number == 0 or committed:
            table.commit(number, {(0, kind): len(each) for kind, each in rows.items()})
        for name in ("offsets", "commits")[: 2 - number]:
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
            (checkpoint / name / str(number)).write_text(f'v1\n{{}}\n{{"t":{{"0":{100 + 10 * number}}}}}')
    sinks = LiveSinks(str(store), quality=False)
    sinks.begin(checkpoint)
    return sinks, checkpoint


@pytest.mark.parametrize(
    ("records", "topics", "said"),
    [
        ([RECORD], [], r"^--quarantine 0:101: the output table has the rows of micro-batch 1 already"),
        (
            [],
            [TOPIC],
            f"^--quarantine-topic {TOPIC}: the output table .* Nothing was written. Start the query",
        ),
        ([Coordinates(0, 105)], [TOPIC], f"^--quarantine-topic {TOPIC}: "),
    ],
)
def test_it_is_refused(tmp_path: Path, records: list[Coordinates], topics: list[str], said: str) -> None:
    sinks, checkpoint = crashed(tmp_path)
    with pytest.raises(NoSuchRecord, match=said):
        sinks.check_aside(checkpoint, "t", records, topics)
    (checkpoint / "commits/1").write_text("v1\n{}")  # when it is done, the topic can be
    sinks.check_aside(checkpoint, "t", [], topics)


def test_what_the_first_attempt_set_aside_stays_so(tmp_path: Path) -> None:
    sinks, checkpoint = crashed(tmp_path)
    sinks.check_aside(checkpoint, "t", [Coordinates(0, 105)], [OTHER])
    sinks.check_aside(
        checkpoint, "t", [Coordinates(0, 99), Coordinates(0, 110)], []
    )  # of other micro-batches


def test_a_micro_batch_that_the_table_lacks(tmp_path: Path) -> None:
    sinks, checkpoint = crashed(tmp_path, committed=False)
    sinks.check_aside(checkpoint, "t", [RECORD], [TOPIC])
