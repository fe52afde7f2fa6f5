"""What a command writes never replaces what it reads, or what others wrote: the one rule, and files that are whole or not there."""

import gzip
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from glob import escape
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from schemas.errors import MagnetarError
from schemas.lines import LOGS
from sinks.base import BEGUN, INGRESS, SEED, STATE
from sinks.lock import LOCK, hold

_DRAFT = ".part"
_LEFT_OVER = re.compile(r"\..+-[0-9a-f]{8}\.part", re.DOTALL)
"""A file of a process that was killed, see `new_file`."""

_NAMED = 5
"""Foreign files that an error names at most."""


class InTheWay(MagnetarError, FileExistsError):
    """An output would replace or damage what is there. The text names it and says what to do."""


def check_new_file(path: Path, inputs: Iterable[str | Path] = ()) -> None:
    """A file may be written: there is nothing of its name, not even a link, and it is not in an input. Raises `InTheWay`."""
    _check_apart(path, inputs, "file")
    if os.path.lexists(path):
        what = f"{path} is a link" if path.is_symlink() else f"{path} already exists"
        raise InTheWay(f"{what}: choose another file")


def check_folder(
    path: Path,
    inputs: Iterable[str | Path] = (),
    *,
    own: Callable[[str], bool] | None = None,
    writer: str = "command",
) -> None:
    """A folder may be filled: it is new or empty, or has nothing but files of which `own` says that the `writer` wrote them. It is no
    link, and neither in an input nor around one. Raises `InTheWay`.

    `own` gets the path of each file in it, at any depth, below the folder.
    """
    _check_apart(path, inputs, "folder")
    if path.is_symlink():
        raise InTheWay(f"{path} is a link: name the folder itself, or choose another folder")
    if not path.exists():
        return
    if not path.is_dir():
        raise InTheWay(f"{path} can't be written: it is not a folder")
    if own is None:
        if any(each.name != LOCK and not _LEFT_OVER.fullmatch(each.name) for each in path.iterdir()):
            raise InTheWay(f"{path} isn't empty: choose another folder")
        return
    foreign = (each for each in _files(path) if (path / each).is_symlink() or not own(each))
    if named := sorted(islice(foreign, _NAMED)):
        raise InTheWay(
            f"{path} contains files that no {writer} wrote ({', '.join(named)}): remove them by hand, or "
            "choose another folder"
        )


def _files(path: Path) -> Iterator[str]:
    """The files and links in a folder, at any depth, without those that our processes need or left. Raises OSError."""
    for each in sorted(path.iterdir()):
        if each.name == LOCK or _LEFT_OVER.fullmatch(each.name):
            continue
        if each.is_dir() and not each.is_symlink():
            yield from (f"{each.name}/{below}" for below in _files(each))
        else:
            yield each.name


def check_nested(path: str | Path, beside: Iterable[str | Path] = (), *, goes_on: bool = False) -> None:
    """A folder for what goes on, such as a query's store, or for results is neither in the folder of another query or server, nor around
    one: each would take the other's files for its own, or delete or copy them with its own. What began so goes on. Raises `InTheWay`.

    `beside`: folders of the same command, which says itself whether they may be in each other. `goes_on`: the folder is one for what goes
    on, so it is none of a log or of results either, which whoever writes those would take for damaged. Around others, it looks `_DEPTH`
    folders deep. What is not on this machine is not looked at.
    """
    if (local := local_path(path)) is None:
        return
    own = Path(os.path.realpath(local))
    if _belongs(own):
        return
    known = {
        Path(os.path.realpath(each)) for given in beside if given and (each := local_path(given)) is not None
    }
    for around in own.parents:
        if around not in known and (what := _belongs(around) or _replayed(around)):
            raise InTheWay(f"{path} is in {around}, which is {what}: choose another folder")
    for inside in _folders_in(own, _DEPTH, known):
        if what := _belongs(inside):
            raise InTheWay(f"{path} holds {inside}, which is {what}: choose another folder")
    if goes_on and (what := _replayed(own) or _log(own)):
        raise InTheWay(f"{path} is {what}: choose another folder")


WHATIF = "whatif-log.json"
"""In the checkpoint of a what-if, see `streaming.answers.whatif.folder`."""

_DEPTH = 3
_SERVERS = b"magnetar checkpoint "


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is the checkpoint of a query."""
    return (folder / "offsets").is_dir() and (folder / "metadata").is_file()


def _belongs(folder: Path) -> str | None:
    """Whose a folder is, None: nobody's."""
    try:
        seed = folder / SEED  # states that come before the query does; or a store of this name
        if (folder / INGRESS).is_file() or ((seed / BEGUN).is_file() and not (seed / INGRESS).is_file()):
            return "the store of a query"
        if (
            is_checkpoint(folder) and not (folder.parent / STATE).is_dir()
        ):  # or else it is part of a replay, which may be made anew
            return "the checkpoint of a query"
        if (folder / WHATIF).is_file() and any(folder.glob("fold-*")):
            return "the checkpoint of a what-if"
        if (folder / "commands").is_dir() and (folder / "checkpoint").is_file():
            with (folder / "checkpoint").open("rb") as file:
                if file.read(len(_SERVERS)) == _SERVERS:
                    return "the data folder of a server"
    except OSError:  # closed to this user
        return None
    return None


def _replayed(folder: Path) -> str | None:
    """What a folder has from a replay. It can be made anew as long as it has nothing else; what is around it doesn't matter."""
    is_replay = (folder / STATE).is_dir() and (folder / "tables").is_dir()
    return "the result of a replay" if is_replay else None


def _log(folder: Path) -> str | None:
    """What a folder with the files of a command log is. In a store, such files are in folders below."""
    with suppress(OSError):
        if any(each.name.endswith(LOGS) for each in folder.iterdir()):
            return "the folder of a command log"
    return None


def _folders_in(path: Path, depth: int, known: Iterable[Path]) -> Iterator[Path]:
    """The folders in one, but for those `known`."""
    with suppress(OSError):
        for each in sorted(path.iterdir()):
            if each in known or each.is_symlink() or not each.is_dir():
                continue
            yield each
            if depth > 1:
                yield from _folders_in(each, depth - 1, known)


def check_apart(path: Path, others: Iterable[str | Path], what: str = "an input") -> None:
    """A file or folder is none of the others, nor in one, nor around one. `what` they are. Raises `InTheWay`."""
    _check_apart(path, others, "folder" if path.is_dir() else "file", what)


def _check_apart(path: Path, others: Iterable[str | Path], kind: str, what: str = "an input") -> None:
    out = Path(os.path.realpath(path))  # unlike `Path.resolve`, it takes links in a circle as they are
    for given in others:
        if not given or (own := local_path(given)) is None:
            continue
        read = Path(os.path.realpath(own))
        if out == read or (out.exists() and read.exists() and out.samefile(read)):
            raise InTheWay(f"{path} is {what}: choose another {kind}")
        if read in out.parents:
            raise InTheWay(f"{path} is in {given}, which is {what}: choose another {kind}")
        if out in read.parents:
            raise InTheWay(f"{path} holds {given}, which is {what}: choose another {kind}")


def local_path(given: str | Path) -> Path | None:
    """The path on this machine that a path or a URL names, None: it names none."""
    if isinstance(given, str) and ":/" in given:
        parts = urlsplit(given)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None
    return Path(given)


@contextmanager
def new_file(path: Path, *, replace: bool = False, durable: bool = False) -> Iterator[BinaryIO]:
    """A file that gets its name when it is whole, when the context ends. After an error there is nothing of it.

    With `replace`, it takes the place of another one then. `durable`: it is on the disk before. Raises `InTheWay`, `OSError`.
    """
    name = f".{path.name[:200]}-"
    for left in path.parent.glob(f"{escape(name)}*{_DRAFT}"):  # of a process that was killed
        _remove_unlocked(left)
    draft, file = _draft(path.parent, name)
    try:
        with file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            _publish(draft, path, replace=replace)  # before its lock ends: others remove unlocked drafts
    except OSError as error:
        name_full(error, path)
        raise
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def name_full(error: OSError, path: Path) -> None:
    """A full disk does not say what it has no room for: `path`, if it was that."""
    if error.errno in (ENOSPC, EDQUOT) and error.filename is None:
        error.filename = str(path)


def _draft(folder: Path, name: str) -> tuple[Path, BinaryIO]:
    """A file that others know to be in use. Until it is locked, they may remove it."""
    while True:
        draft = folder / f"{name}{uuid4().hex[:8]}{_DRAFT}"
        try:
            file = draft.open("xb")
        except FileNotFoundError as error:
            raise FileNotFoundError(error.errno, error.strerror, str(folder)) from None
        if hold(file.fileno(), draft, LOCK_SH):
            return draft, file
        file.close()


def _remove_unlocked(draft: Path) -> None:
    with suppress(OSError), draft.open("rb") as file:
        flock(file, LOCK_EX | LOCK_NB)
        draft.unlink()


def _publish(draft: Path, path: Path, *, replace: bool) -> None:
    if not replace:
        try:
            path.hardlink_to(draft)
            return
        except FileExistsError:
            raise InTheWay(f"{path} already exists: choose another file") from None
        except OSError:  # a file system without links
            check_new_file(path)
    draft.replace(path)


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """A folder, which is made if there is none, gets files. After an error it has none of them, so that the same command can fill it."""
    folder.mkdir(parents=True, exist_ok=True)
    before = {*folder.iterdir()}
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            for each in {*folder.iterdir()} - before:
                if each.is_dir():
                    shutil.rmtree(each)
                else:
                    each.unlink()
        if isinstance(error, OSError):
            name_full(error, folder)
        raise


@contextmanager
def new_lines(path: Path, *, replace: bool = False) -> Iterator[BinaryIO]:
    """A file of lines, compressed if its name ends in ``.gz``, as `new_file`."""
    with new_file(path, replace=replace) as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile(path.with_suffix("").name, "wb", fileobj=file) as packed:
            yield cast("BinaryIO", packed)
