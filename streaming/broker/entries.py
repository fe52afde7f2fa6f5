"""The entries of one micro-batch, and access to those of earlier ones."""

from collections.abc import Callable, Iterable, Sequence

from schemas.entries import Entry, EntryNotFound, EntryReader, PayloadReader
from streaming.broker.position import Position

PayloadsOf = Callable[[str, int, int, int], Sequence[bytes]]
"""The payloads of the entries of a topic's ledger, from the first to the last number, both included."""


class NoPayloads(EntryNotFound):
    """A topic is compacted where nobody has the payloads of its entries."""


class NoStore(EntryNotFound):
    """There is no store that could have the entry."""


class NoEntries:
    """A reader without entries: for a broker that starts fresh and keeps its whole log in memory, or whose state is only looked at."""

    def read(self, topic: str, ledger_id: int, first: int, last: int) -> Sequence[Entry]:
        """Raises `NoStore`, always."""
        raise NoStore(f"{topic} {ledger_id}:{first}..{last}: no store was given")


_NOT_KEPT = "{} is compacted and has batches, whose keys are in their payloads. What-if, advise and canaries keep none, and can't judge this"
_NONE_THERE = "{} is compacted, which needs the payloads of its messages. There are none: check keeps none, and can't judge this"


def no_payloads(topic: str, *_entries: int) -> Sequence[bytes]:
    """`Entries.recent_payloads` where there are none, also of entries in the store: see `Entries.whole`. Raises `NoPayloads`."""
    raise NoPayloads(_NOT_KEPT.format(topic))


def _no_payload(topic: str, entry: Entry) -> bytes:
    """In place of a payload that nobody looks into. Raises `NoPayloads` for that of a batch, which has the keys of its messages."""
    if entry.metadata.num_messages_in_batch is not None and not entry.metadata.encryption_keys:
        raise NoPayloads(_NOT_KEPT.format(topic))
    return b""


def _payload(topic: str, entry: Entry) -> bytes:
    if entry.payload is None:
        raise NoPayloads(_NONE_THERE.format(topic))
    return entry.payload


_MAKER = 32
"""An entry that is made when it is read is the number of its maker, shifted by so many bits, and its own number: no objects
for Python to collect."""


class Entries:
    """Entries of this micro-batch from memory, and earlier ones through an `EntryReader`.

    `recent_payloads`: where payloads of entries of this micro-batch are, if whoever folds it has put them elsewhere. None: entries have
    their own.
    """

    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self.recent_payloads: PayloadsOf | None = None
        self._recent: dict[tuple[str, int], tuple[int, list[Entry | int]]] = {}
        self._makers: list[Callable[[int], Entry]] = []

    @property
    def reader(self) -> EntryReader:
        """Where entries of earlier micro-batches come from."""
        return self._reader

    def add(self, topic: str, position: Position, entry: Entry) -> None:
        """Remember an entry that was just written."""
        ledger = self._recent.get((topic, position.ledger))
        if ledger is None:
            self._recent[topic, position.ledger] = (position.entry, [entry])
        else:
            ledger[1].append(entry)

    def add_all(
        self, topic: str, ledger_id: int, first: int, make: Callable[[int], Entry], rows: Iterable[int]
    ) -> None:
        """Remember entries from `first` on. Each is made of its number in `rows`, and only when it is read."""
        if not self._makers or self._makers[-1] != make:
            self._makers.append(make)
        maker = len(self._makers) - 1 << _MAKER
        _, recent = self._recent.setdefault((topic, ledger_id), (first, []))
        recent.extend([maker | row for row in rows])

    def forget(self, topic: str, ledger_id: int) -> None:
        """Forget a deleted ledger. Its entries must not be read again."""
        self._recent.pop((topic, ledger_id), None)

    def stored(self) -> None:
        """The entries that were written so far can be read through the reader from now on."""
        self._recent.clear()
        self._makers.clear()

    def get(self, topic: str, position: Position) -> Entry:
        """One entry. Raises `EntryNotFound`."""
        first, recent = self._recent.get((topic, position.ledger), (position.entry + 1, ()))
        if position.entry >= first:
            return self._made(recent[position.entry - first])
        return self._reader.read(topic, position.ledger, position.entry, position.entry)[0]

    def whole(self, topic: str, ledger_id: int, first: int, last: int) -> list[Entry]:
        """Entries `first`..`last` of a ledger, both included, with their payloads. Raises `EntryNotFound` and `NoPayloads`.

        Where nobody keeps payloads (`no_payloads`), those of single messages are empty, as nothing depends on them.
        """
        found = self.get_all(topic, [Position(ledger_id, entry) for entry in range(first, last + 1)])
        if self.recent_payloads is no_payloads:
            return [
                Entry(each.metadata, each.size, each.broker_timestamp, _no_payload(topic, each))
                for each in found
            ]
        begin, _ = self._recent.get((topic, ledger_id), (last + 1, ()))
        stored = min(begin - 1, last)
        if stored >= first:
            if not isinstance(self._reader, PayloadReader):
                raise NoPayloads(_NONE_THERE.format(topic))
            payloads = list(self._reader.payloads(topic, ledger_id, first, stored))
        else:
            payloads = []
        recent = max(first, begin)
        if recent <= last:
            if self.recent_payloads is not None:
                payloads += self.recent_payloads(topic, ledger_id, recent, last)
            else:
                payloads += [_payload(topic, each) for each in found[len(payloads) :]]
        return [
            Entry(each.metadata, each.size, each.broker_timestamp, payload)
            for each, payload in zip(found, payloads, strict=True)
        ]

    def get_all(self, topic: str, positions: Iterable[Position]) -> list[Entry]:
        """The entries at ascending positions. Reads adjacent stored entries together. Raises `EntryNotFound`."""
        found: list[Entry] = []
        ledger = begin = end = -1
        for position in positions:
            first, recent = self._recent.get((topic, position.ledger), (position.entry + 1, ()))
            if position.ledger == ledger and position.entry == end + 1 and position.entry < first:
                end += 1
                continue
            if begin >= 0:
                found.extend(self._reader.read(topic, ledger, begin, end))
                begin = -1
            if position.entry >= first:
                found.append(self._made(recent[position.entry - first]))
            else:
                ledger, begin, end = position.ledger, position.entry, position.entry
        if begin >= 0:
            found.extend(self._reader.read(topic, ledger, begin, end))
        return found

    def _made(self, entry: Entry | int) -> Entry:
        if isinstance(entry, Entry):
            return entry
        return self._makers[entry >> _MAKER](entry & (1 << _MAKER) - 1)
