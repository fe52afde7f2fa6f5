"""Exclusive use of folders and stores: one process writes to each, and a dead one never keeps the others out.

A folder on this machine's file systems is locked with `flock`, which the kernel releases when the process ends, however it
ends. The file ``_lock`` in it names the holder for the error message. It disappears with the lock, or counts for nothing.

Who reads a folder that is made anew as a whole, such as that of a replay, has a shared `flock` of the folder itself, and whoever makes
it anew an exclusive one (`reading`, `alone`).

A store on another file system, or on one without `flock`, has a *lease* instead: ``_lock`` contains the holder and a number
that the holder raises every `RENEW_SECONDS`. Whoever finds a lease waits for `EXPIRE_SECONDS` of its own time. If the lease
changes meanwhile, its holder lives. If not, it is dead, and the lease is taken over. No clock of another machine counts. A
holder that finds another's lease in place of its own, or could not renew it for too long, has lost it (`Exclusive.lost`).

What a lease does not cover: two processes that find no lease, of which one then stalls for more than `SETTLE_SECONDS` before
it writes its own; and a holder that stalls for `EXPIRE_SECONDS` in the middle of a write. Either is noticed at the next
renewal. The filesystem must replace files atomically and show new contents at once, as S3, GCS and HDFS do.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from schemas.errors import MagnetarError
from schemas.undecodable import UNDECODABLE

if TYPE_CHECKING:
    from sinks.storage import Storage

log = logging.getLogger(__name__)

RENEW_SECONDS = 5.0
EXPIRE_SECONDS = 20.0
SETTLE_SECONDS = 1.0

LOCK = "_lock"  # readers of data folders skip names that start with an underscore
_TRIES = 100
_ATTEMPTS = (
    3  # on S3, about two seconds: who waits longer for an answer notices too late that the lease is lost
)
_NO_FOLDER = (errno.EEXIST, errno.ENOTDIR)
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


class InUse(MagnetarError, RuntimeError):
    """Another process uses the folder or the store. The text says which one and what to do."""


class NotWritable(MagnetarError, RuntimeError):
    """A folder or store can't be written. The text says why."""


class LeaseLost(MagnetarError, RuntimeError):
    """The lease of a store was lost while this process used it."""


class Holder(msgspec.Struct, frozen=True):
    """Who uses a folder. `since`: ms since the epoch; `id` and `renewal` tell the states of a lease apart."""

    command: str
    host: str
    pid: int
    since: int
    id: str
    renewal: int = 0

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.command} (pid {self.pid} on {self.host}, since {since})"


class Exclusive:
    """What `exclusive` holds. `lost`: why this process must not write any more, if it lost a lease. `killed`: by folder or store, as
    `Storage` names it, the command of the last process that had it, if that did not live to leave it."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self.killed: dict[str, str] = {}
        self._on_loss: list[Callable[[], None]] = []

    def on_loss(self, call: Callable[[], None]) -> None:
        """Call `call` in another thread when a lease is lost."""
        self._on_loss.append(call)
        if self.lost is not None:
            call()

    def check(self) -> None:
        """Raises `LeaseLost`."""
        if self.lost is not None:
            raise LeaseLost(self.lost)

    def _lose(self, why: str) -> None:
        self.lost = why
        for call in self._on_loss:
            call()


@contextmanager
def exclusive(urls: Iterable[str], command: str, *, alone: bool = False) -> Iterator[Exclusive]:
    """Use folders and stores as their only process. Creates folders; removes those again that stay empty.

    Args:
        urls: paths or URLs as of `Storage`. One that occurs twice counts once.
        command: names this use in the errors of others, such as ``magnetar run``.
        alone: nobody reads a folder meanwhile, either, see `reading`.

    Raises:
        InUse: another process uses one of them.
        NotWritable: one of them can't be written.
        BadUrl: pyarrow can't open one.
    """
    holder = Holder(command, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000, uuid4().hex)
    held = Exclusive()
    with ExitStack() as stack:
        # What is no URL is a folder of this machine, for which a test double needs no Arrow.
        for url in dict.fromkeys(u.rstrip("/") if ":/" in u else str(Path(u).absolute()) for u in urls):
            storage = _storage(url) if ":/" in url else None
            folder = Path(url) if storage is None else storage.folder
            if folder is None or not stack.enter_context(_locked(folder, holder, held)):
                stack.enter_context(_leased(storage or _storage(url), holder, held))
            elif alone:
                stack.enter_context(_read_by(folder, fcntl.LOCK_EX))
        yield held


def _storage(url: str) -> Storage:
    from sinks.storage import Storage

    return Storage(url, attempts=_ATTEMPTS)


@contextmanager
def reading(folders: Iterable[Path]) -> Iterator[None]:
    """Read folders, of which no process makes anew what is in them (`exclusive` with `alone`) meanwhile. A process that only adds to
    a folder goes on. Raises `InUse`."""
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_read_by(folder, fcntl.LOCK_SH))
        yield


@contextmanager
def _read_by(folder: Path, how: int) -> Iterator[None]:
    """Holds the lock of a folder itself, which needs no right to write there."""
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # its files may be readable nonetheless
        yield
        return
    _held.add(file)
    try:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if how == fcntl.LOCK_EX:
                raise InUse(
                    f"{folder} is being read by another command: wait until that has ended, or choose another folder here"
                ) from None
            raise in_use(folder, _holder(folder)) from None
        except OSError:  # a file system that can't lock folders
            log.debug("%s can't be locked for readers", folder)
        yield
    finally:
        _release(file)


_held: set[int] = set()
"""The open files with locks. A lock lasts until the last process that has its file ends."""


def _release(file: int) -> None:
    if file in _held:
        _held.remove(file)
        os.close(file)


def _forget_locks() -> None:
    """In a process that was forked. If the one with the locks is killed, its workers must not keep them."""
    for file in _held:
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)


def last_command(folder: Path) -> str | None:
    """The command that uses a folder, or that was killed while it did. None: neither is known."""
    return None if (holder := _holder(folder)) is None else holder.command


def _holder(folder: Path) -> Holder | None:
    try:
        return _read((folder / LOCK).read_bytes())
    except OSError:
        return None


def in_use(where: object, holder: Holder | None) -> InUse:
    """The error for a folder or store that `holder` uses."""
    return InUse(
        f"{where} is in use by {holder or 'another process'}: wait until that has ended, or stop it, or choose another "
        "folder here"
    )


# -- folders


@contextmanager
def _locked(folder: Path, holder: Holder, held: Exclusive) -> Iterator[bool]:
    """Holds the lock of a folder. Gives False if its file system has none."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    path = folder / LOCK
    try:
        file = _lock(path)
    except OSError as error:
        _remove_empty(missing)
        if error.errno in _NO_FLOCK:
            yield False
            return
        why = "it is not a folder" if error.errno in _NO_FOLDER else error.strerror
        raise NotWritable(f"{folder} can't be written: {why}") from error
    _held.add(file)
    try:
        before = os.pread(file, os.fstat(file).st_size, 0)
        if (killed := _read(before)) is not None:
            held.killed[str(folder)] = killed.command
        # In one write, so that there is always a whole name in it.
        os.pwrite(file, msgspec.json.encode(holder).ljust(len(before)), 0)
        yield True
    finally:
        # Removed before the lock ends: a process that opened it meanwhile sees that it is gone, and starts over.
        if _is_named(file, path):  # the folder may have been moved, and another one be in its place
            path.unlink(missing_ok=True)
        _release(file)
        _remove_empty(missing)


def _lock(path: Path) -> int:
    """An open file with the lock of its path. Raises `InUse`."""
    for left in reversed(range(_TRIES)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except (FileNotFoundError, FileExistsError):  # its last user may just have removed the folder
            if not left:
                raise
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(file, path):
                return file
        except BlockingIOError:
            holder = _read(os.pread(file, os.fstat(file).st_size, 0))
            os.close(file)
            raise in_use(path.parent, holder) from None
        except OSError:
            os.close(file)
            raise
        os.close(file)
    raise in_use(path.parent, None)


def hold(file: int, path: Path, how: int) -> bool:
    """Lock an open file as `flock` does, if its file system has locks. False: the path does not name it any more, so others will not
    see the lock: begin again."""
    with suppress(OSError):
        fcntl.flock(file, how)
    return _is_named(file, path)


def _is_named(file: int, path: Path) -> bool:
    """Does the path name an open file? Somebody may have removed it before it was locked."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):
        for each in folders:
            each.rmdir()


def _read(text: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(text, type=Holder)
    except UNDECODABLE:
        return None


# -- leases


@contextmanager
def _leased(storage: Storage, holder: Holder, held: Exclusive) -> Iterator[None]:
    from sinks.storage import NotStored

    found = _lease(storage)
    if found is not None:
        log.warning("%s was in use by %s: waiting %d s to see whether that still lives", storage.url, found, EXPIRE_SECONDS)  # fmt: skip
        deadline = time.monotonic() + EXPIRE_SECONDS
        while time.monotonic() < deadline and found is not None:
            time.sleep(min(SETTLE_SECONDS, EXPIRE_SECONDS))
            now = _lease(storage)
            if now is not None and now != found:
                raise in_use(storage.url, now)
            found = now
        if found is not None:
            held.killed[storage.url] = found.command
    try:
        _renew(storage, holder)
    except NotStored as error:
        raise NotWritable(str(error)) from error
    time.sleep(SETTLE_SECONDS)  # if two come at once, the one who wrote last has the lease
    if not _is_of(now := _lease(storage), holder):
        raise in_use(storage.url, now)
    ended = threading.Event()
    renewing = threading.Thread(target=_keep, args=(storage, holder, held, ended), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        if held.lost is None:
            with suppress(OSError):
                storage.delete(LOCK)


def _keep(storage: Storage, mine: Holder, held: Exclusive, ended: threading.Event) -> None:
    """Renews a lease until `ended` is set or the lease is lost."""
    from sinks.storage import plain

    renewed = time.monotonic()
    while not ended.wait(RENEW_SECONDS):
        try:
            now = _lease(storage)
            if not _is_of(now, mine):
                held._lose(f"{storage.url} was taken over by {now or 'another process'} while this process stalled; it has "
                           "stopped, and the other one continues")  # fmt: skip
                return
            mine = msgspec.structs.replace(mine, renewal=mine.renewal + 1)
            _renew(storage, mine)
            renewed = time.monotonic()
        except OSError as error:
            if time.monotonic() - renewed > EXPIRE_SECONDS - RENEW_SECONDS:
                held._lose(f"the lease of {storage.url} could not be renewed: {plain(error)}. Nothing is "
                           "lost: try again when the store answers")  # fmt: skip
                return


def _is_of(found: Holder | None, holder: Holder) -> bool:
    """Is that a lease of this holder? It may not know which renewal the store has, if the store's answer was lost."""
    return found is not None and found.id == holder.id


def _lease(storage: Storage) -> Holder | None:
    try:
        with storage.open(LOCK) as file:
            return _read(file.read())
    except FileNotFoundError:
        return None


def _renew(storage: Storage, holder: Holder) -> None:
    storage.publish(LOCK, lambda stream: stream.write(msgspec.json.encode(holder)))
