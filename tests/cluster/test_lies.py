"""The ledger store on an S3 that lies once: what is read is what was written, or there is an error. Nothing is lost in silence."""

from itertools import count

import pytest

from schemas.entries import EntryNotFound
from sinks.ledger_store import LedgerStore
from sinks.storage import Damaged, NotStored
from tests.cluster.liar import LIES, Liar
from tests.cluster.s3 import LocalS3
from tests.sinks.helpers import TOPIC, closed, deleted, output, receipts

pytestmark = pytest.mark.slow

BATCHES = 7
OF_A_LEDGER = 3  # micro-batches, each with three entries
STEPS = (0, 1, 2, 3, 5, 8, 13, 21, 34)


def write(url: str) -> list[list[int]]:
    """The sequence ids of the open ledger's entries, as they were read after each micro-batch."""
    store = LedgerStore(url)
    read = []
    for batch in range(BATCHES):
        ledger, part = divmod(batch, OF_A_LEDGER)
        ledger += 1
        last = 3 * part + 2
        rows = receipts(ledger, last - 2, last)
        if part == OF_A_LEDGER - 1:
            rows.append(closed(ledger, last + 1))
        if batch == BATCHES - 2:
            rows.append(deleted(1, 9))
        store.begin(batch)
        store.write(batch, 0, output(rows))
        read.append([each.metadata.sequence_id for each in store.reader(0).read(TOPIC, ledger, 0, last)])
    store.begin(BATCHES)
    return read


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_noticed_or_harmless(
    lie: str, s3: str, s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    truth = write(f"{s3}/truth")
    entries = LedgerStore(f"{s3}/truth").scan()
    for number, at in zip(count(), STEPS, strict=False):
        url = f"{s3}/{number}"
        with Liar(s3_server.port, lie, at) as liar:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{liar.port}")
            try:
                read = write(url)
            except (Damaged, NotStored, EntryNotFound, FileNotFoundError):
                continue
            liar.at = None
            assert read == truth, liar.told
            assert LedgerStore(url).scan() == entries, liar.told
        if not liar.told:  # so many requests there are not
            break
