"""``python -m tools.setting_names REPOSITORY``: the settings of the compared releases, from a clone of apache/pulsar that has their tags.

Writes ``streaming/broker/setting_names.py``. Run it again when a release is added to ``RELEASES`` in ``streaming/broker/config.py``.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from streaming.broker.config import LINES, RELEASES

_CLASS = "pulsar-broker-common/src/main/java/org/apache/pulsar/broker/ServiceConfiguration.java"
_FIELD = re.compile(
    r"^    (?:private|protected|public) (?!static)[\w<>, .?\[\]]+? (\w+)(?: *=[^;]*|);", re.MULTILINE
)
_FILES = ("conf/broker.conf", "conf/standalone.conf", "conf/bookkeeper.conf")
_SET = re.compile(r"^(?:# ?)?([A-Za-z]\w+)=", re.MULTILINE)
_WIDTH = 110
_TO = Path(__file__).parents[1] / "streaming" / "broker" / "setting_names.py"


def names_in(repository: Path, release: str) -> set[str]:
    """The names of a release's settings: the fields of its class, and those in its files that other classes read."""

    def text(path: str) -> str:
        shown = ["git", "-C", str(repository), "show", f"v{release}:{path}"]
        return subprocess.run(shown, check=True, capture_output=True, text=True).stdout

    return {name for path in _FILES for name in _SET.findall(text(path))} | set(_FIELD.findall(text(_CLASS)))


def module(names: set[str]) -> str:
    """The text of the module."""
    releases = [RELEASES[line] for line in LINES]
    listed = "\n".join(textwrap.wrap(" ".join(sorted(names)), _WIDTH, break_long_words=False))
    return (
        '"""The settings of a real broker, by name. Written by `tools/setting_names.py`; do not change it by hand.\n\n'
        f"They are those of Pulsar {', '.join(releases[:-1])} and {releases[-1]}: the fields of `ServiceConfiguration`, and the names in\n"
        "`broker.conf`, `standalone.conf` and `bookkeeper.conf` (which a standalone broker's bookie reads from the same file).\n"
        '"""\n\n'
        f'_NAMES = """\n{listed}\n"""\n\n'
        'RELEASED = frozenset(_NAMES.split())\n"""All of them."""\n'
    )


if __name__ == "__main__":
    found = set[str]().union(*(names_in(Path(sys.argv[1]), RELEASES[line]) for line in LINES))
    _TO.write_text(module(found))
    print(f"{len(found)} settings in {_TO}")
