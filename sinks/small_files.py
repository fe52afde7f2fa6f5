"""Small files that a user names, with a bound: a name may lead to a device without an end, or to the wrong file."""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from contextlib import suppress
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


def in_utf8(data: bytes) -> bytes:
    """A text file as an editor or a shell of Windows may have written it, in UTF-8 without a mark at its beginning. Whatever can't be
    decoded stays as it is."""
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        with suppress(UnicodeDecodeError):
            return data.decode("utf-16").encode()
    return data.removeprefix(BOM_UTF8)


def read_small_text(path: str | Path) -> str:
    """The text of a file of at most `MOST_BYTES`. Raises `OSError`."""
    try:
        return in_utf8(read_small(path)).decode()
    except UnicodeDecodeError as error:
        raise OSError(EILSEQ, "it is not text in UTF-8: name another file", str(path)) from error
