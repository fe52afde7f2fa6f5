"""Small files that a user names, with a bound: a name may lead to a device without an end, or to the wrong file."""

from errno import EFBIG, EILSEQ
from pathlib import Path

MOST_BYTES = 4 << 20


def read_small(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file of at most so many bytes. Raises `OSError`, whose `strerror` says what to do if there are more."""
    with Path(path).open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(EFBIG, f"it has more than {most >> 20} MiB: name another file", str(path))
    return data


def read_small_text(path: str | Path) -> str:
    """The text of a file of at most `MOST_BYTES`. Raises `OSError`."""
    try:
        return read_small(path).decode()
    except UnicodeDecodeError as error:
        raise OSError(EILSEQ, "it is not text in UTF-8: name another file", str(path)) from error
