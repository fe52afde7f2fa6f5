"""Entry filters decide by an entry's metadata whether a subscription gets it (E7, docs/rules/shared.md §11).

Pulsar loads filters from Java archives. Here they are named functions, and every run that replays a log must register
the same ones. The setting ``entryFilterNames`` lists those in force. Filters must depend only on their arguments.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from schemas.commands import MessageMetadata

FilterResult = Literal["ACCEPT", "REJECT", "RESCHEDULE"]
EntryFilter = Callable[[MessageMetadata, Mapping[str, str]], FilterResult]
"""(metadata, properties of the subscription) → result. RESCHEDULE: redeliver the entry a second later."""

_filters: dict[str, EntryFilter] = {}


def register(name: str, entry_filter: EntryFilter) -> None:
    """Register a filter under a name for ``entryFilterNames``. Raises `ValueError` if the name is taken."""
    if _filters.setdefault(name, entry_filter) is not entry_filter:
        raise ValueError(f"an entry filter named {name} is registered already")


def known(name: str) -> bool:
    """Whether a filter has that name."""
    return name in _filters


def judge(names: str, metadata: MessageMetadata, properties: Mapping[str, str]) -> FilterResult:
    """The first result other than ACCEPT of the filters in `names` (comma-separated), else ACCEPT."""
    for name in names.split(","):
        if name and (result := _filters[name](metadata, properties)) != "ACCEPT":
            return result
    return "ACCEPT"


def property_filter(metadata: MessageMetadata, properties: Mapping[str, str]) -> FilterResult:
    """A subscription with a property ``filter.<name>`` gets only messages whose property ``<name>`` has that value."""
    wanted = {key[len("filter.") :]: value for key, value in properties.items() if key.startswith("filter.")}
    found = {pair.key: pair.value for pair in metadata.properties}
    return "ACCEPT" if all(found.get(key) == value for key, value in wanted.items()) else "REJECT"


register("PropertyFilter", property_filter)
