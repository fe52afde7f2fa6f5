"""Another name for a folder whose own name a library can't use, as it takes its characters for something else."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

_PLAIN = re.compile(r"[\w/.=-]+", re.ASCII)


def is_plain(folder: Path) -> bool:
    """Whether every library leaves the path of a folder as it is."""
    return _PLAIN.fullmatch(str(folder.absolute())) is not None


class Link:
    """`path` leads to a folder, and has only characters that every library leaves as they are: the folder's own path, or else that of
    a symbolic link, which is there as long as this object. The folder need not exist. It has to be seen by this machine alone."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.absolute()
        if not is_plain(folder):
            self._kept = TemporaryDirectory(prefix="magnetar-")
            link = Path(self._kept.name) / "folder"
            link.symlink_to(self.path, target_is_directory=True)
            self.path = link
