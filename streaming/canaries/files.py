"""What canaries keep in the store of their query, below ``canaries``.

A look at what the query folded since the last one makes files under a number of its own, and then `Marker` says that they count. So after a
crash, what a look left half done is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sinks import batch_files
from sinks.folded import FoldedFiles
from sinks.parquet import fragment, options
from sinks.storage import Damaged, Storage, within
from sinks.sums import summed, unsummed
from streaming.answers.whatif.answer import DIFFERENCES, WhatIf
from streaming.answers.whatif.compare import joined
from streaming.answers.whatif.folds import from_bytes
from streaming.answers.whatif.page import clock_text
from streaming.answers.whatif.texts import is_in, ranks
from streaming.canaries.partition import Canary, Kept

FOLDER = "canaries"

BEGIN_ANEW = "Stop the query, remove the folder, and the canaries begin anew"

_MARKER = "canaries.json"
_KEPT, _ANSWER, _SETTLED, _OPEN = "kept", "answer", "differences/settled", "differences/open"
_TOGETHER, _MOST_ROWS = 16, 1_000_000
"""So many files of differences are put together, if they have no more rows than this."""

_FOLDERS = {_KEPT: "msgpack", _ANSWER: "msgpack", _SETTLED: "parquet", _OPEN: "parquet"}
"""Files by look and ingress partition, and their extensions."""


class Settled(NamedTuple):
    """A file of settled differences: the look that wrote it, how often its rows were put together with others, and how many they are."""

    look: int
    tier: int
    rows: int


class Marker(msgspec.Struct):
    """What counts. `version`: Magnetar's. `batch`: the last micro-batch that was looked at. `look`: the number of the last look. `records`: so many
    were folded. `kept`: by ingress partition the look that made what it keeps, how it compares, and the differences that are not settled.
    `settled`: by ingress partition the files of those that are."""

    version: str
    partitions: int
    canaries: list[Canary]
    batch: int
    look: int = 0
    records: int = 0
    kept: dict[int, int] = {}
    settled: dict[int, list[Settled]] = {}


class CanaryFiles:
    """The files. Pickles to the store's URL."""

    def __init__(self, store: str) -> None:
        self._store = store
        self.storage = Storage(within(store, FOLDER), restore=BEGIN_ANEW)
        self.folded = FoldedFiles(self.storage)

    def marker(self) -> Marker | None:
        """What counts; None: nothing. Raises `Damaged`."""
        return self.storage.read_json(_MARKER, Marker, "which looks of the canaries count", BEGIN_ANEW)

    def commit(self, marker: Marker) -> None:
        """From now on, this counts, and what it does not name is deleted."""
        self.storage.write_json(_MARKER, marker)
        self.sweep(marker)

    def sweep(self, marker: Marker | None) -> None:
        """Delete what does not count."""
        for folder, extension in _FOLDERS.items():
            counts = set() if marker is None else _counting(marker, folder)
            for info in self.storage.files(folder, named=batch_files.NAME):
                if (written := batch_files.of(info.base_name)) is not None and written not in counts:
                    self.storage.delete(batch_files.path(folder, *written, extension))

    def write_kept(self, look: int, partition: int, kept: Kept) -> None:
        """What canaries need to go on after a look."""
        self._write(_KEPT, look, partition, msgspec.msgpack.encode(kept))

    def kept(self, look: int, partition: int) -> Kept:
        """What they need. Raises `FileNotFoundError` and `Damaged`."""
        return msgspec.msgpack.decode(self._read(_KEPT, look, partition), type=Kept)

    def write_answer(self, look: int, partition: int, answer: bytes) -> None:
        """How canaries compare after a look, see `whatif.folds.to_bytes`."""
        self._write(_ANSWER, look, partition, answer)

    def write_open(self, look: int, partition: int, rows: pa.Table) -> None:
        """Differences (columns `DIFFERENCES`) that are not settled. There is a file of none, too, so that a missing one is noticed."""
        self._write_rows(_OPEN, look, partition, rows)

    def write_settled(
        self, look: int, partition: int, rows: pa.Table, before: Sequence[Settled]
    ) -> Sequence[Settled]:
        """Add differences (columns `DIFFERENCES`) that a look settled to the files of an ingress partition, whose number grows with the logarithm
        of that of looks, or with their rows. Returns the files that count then."""
        if not len(rows):
            return before
        tier = 0
        while True:
            same = [each for each in before if each.tier == tier][-_TOGETHER + 1 :]
            if len(same) < _TOGETHER - 1 or len(rows) + sum(each.rows for each in same) > _MOST_ROWS:
                break
            rows = pa.concat_tables([*(self._rows(_SETTLED, each.look, partition) for each in same), rows])
            before, tier = [each for each in before if each not in same], tier + 1
        self._write_rows(_SETTLED, look, partition, rows.unify_dictionaries())
        return [*before, Settled(look, tier, len(rows))]

    def only(
        self, look: int, partition: int, names: Iterable[str], before: Sequence[Settled]
    ) -> list[Settled]:
        """The settled differences of some policy sets alone, in a file of a new look. Returns the files that count then."""
        count = 0

        def write(stream: pa.NativeFile) -> None:
            nonlocal count
            with pq.ParquetWriter(stream, DIFFERENCES, **options(DIFFERENCES, "zstd")) as writer:
                for each in before:
                    rows = self._rows(_SETTLED, each.look, partition)
                    rows = rows.filter(is_in(rows["policies"], names))
                    writer.write_table(rows)
                    count += len(rows)

        if not before:
            return []
        self.storage.publish(batch_files.path(_SETTLED, look, partition, _FOLDERS[_SETTLED]), write)
        return [Settled(look, max(each.tier for each in before), count)]

    def answer(self, most: int | None = None) -> WhatIf | None:
        """How the canaries compare after the last look. None: there was none. `most`: about so many differences are enough, those that are not
        settled and the latest before others. Raises `Damaged`."""
        marker = self.marker()
        while marker is not None:
            try:
                return self._answer(marker, most)
            except FileNotFoundError as error:
                before, marker = marker, self.marker()
                if before == marker:  # or else a look ended meanwhile
                    raise Damaged(f"{self.storage.url} is damaged: {error}. {BEGIN_ANEW}") from error
        return None

    def _answer(self, marker: Marker, most: int | None) -> WhatIf:
        parts = [from_bytes(self._read(_ANSWER, look, partition)) for partition, look in marker.kept.items()]
        names = [each.name for each in marker.canaries]
        empty = [each._replace(differences=each.differences._replace(rows=None)) for each in parts]
        since = ", ".join(
            f"{each.name} since {clock_text(each.since) if each.since else 'the first record'}"
            for each in marker.canaries
        )
        found = joined(f"the traffic of {self._store}: {since}", marker.records, empty, names)
        tables, count = [DIFFERENCES.empty_table()], 0
        for table in self._differences(marker):
            if most is not None and count >= most:
                break
            tables.append(table)
            count += len(table)
        rows = pa.concat_tables(tables).unify_dictionaries()
        keys = pa.table({name: ranks(rows[name]) for name in ("topic", "subscription", "policies")})
        keys = keys.append_column("offset", rows["offset"])
        order = [(name, "ascending") for name in ("topic", "offset", "subscription", "policies")]
        return msgspec.structs.replace(found, differences=rows.take(pc.sort_indices(keys, order)))

    def _differences(self, marker: Marker) -> Iterator[pa.Table]:
        for folder in (_OPEN, _SETTLED):
            for written in sorted(_counting(marker, folder), reverse=True):
                yield self._rows(folder, *written)

    def _rows(self, folder: str, look: int, partition: int) -> pa.Table:
        with fragment(self.storage, batch_files.path(folder, look, partition, _FOLDERS[folder])) as file:
            return file.to_table().cast(DIFFERENCES)

    def _write_rows(self, folder: str, look: int, partition: int, rows: pa.Table) -> None:
        path = batch_files.path(folder, look, partition, _FOLDERS[folder])
        self.storage.publish(path, partial(_write_table, rows))

    def _write(self, folder: str, look: int, partition: int, data: bytes) -> None:
        path = batch_files.path(folder, look, partition, _FOLDERS[folder])
        self.storage.publish(path, lambda stream: stream.write(summed(data)))

    def _read(self, folder: str, look: int, partition: int) -> bytes:
        path = batch_files.path(folder, look, partition, _FOLDERS[folder])
        with self.storage.open(path) as file:
            found = bytes(file.read())
        if (data := unsummed(found)) is None:
            raise Damaged(f"{self.storage.url}/{path} is damaged: its checksum is wrong. {BEGIN_ANEW}")
        return data


def _write_table(rows: pa.Table, stream: pa.NativeFile) -> None:
    with pq.ParquetWriter(stream, DIFFERENCES, **options(DIFFERENCES, "zstd")) as writer:
        writer.write_table(rows)


def _counting(marker: Marker, folder: str) -> set[batch_files.WrittenFile]:
    """The files of a folder that count."""
    if folder == _SETTLED:
        return {
            batch_files.WrittenFile(each.look, partition)
            for partition, files in marker.settled.items()
            for each in files
        }
    return {batch_files.WrittenFile(look, partition) for partition, look in marker.kept.items()}
