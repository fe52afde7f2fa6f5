"""Runs `magnetar-double` where nothing can be imported but Python's own and what the arguments before ``--`` name."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

at = sys.argv.index("--")
ALLOWED = {*sys.stdlib_module_names, *sys.argv[1:at]}


class Nothing(MetaPathFinder):
    """Finds no module of another distribution."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As if it was not installed."""
        if name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


if __name__ == "__main__":
    sys.meta_path.insert(0, Nothing())
    sys.argv[1 : at + 1] = []
    import magnetar_double  # type: ignore[import-not-found]

    magnetar_double.main()
