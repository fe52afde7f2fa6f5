"""Files below a URL on any pyarrow filesystem, published atomically."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyarrow import fs

from schemas.errors import MagnetarError
from schemas.undecodable import UNDECODABLE
from sinks.s3 import S3Url, failed
from sinks.sums import is_whole, sealed

T = TypeVar("T")

RESTORE = (
    "Restore it from a backup, or start with a new store and a new checkpoint: the log, if it is still "
    "complete, recreates both"
)
"""What to do about a store that differs from what was written. A clause of a sentence."""

TEMPORARY = "_temporary"
"""The folder of drafts. Readers of data folders skip names that start with an underscore."""

_DRAFT = re.compile("[0-9a-f]{32}")
_TRIES = 100
_PIECE = 8 << 20
_ONE_REQUEST = 4 << 20
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Damaged(MagnetarError, OSError):
    """A file of the store differs from what was written. The text names it, its contents, and what to do."""


class NotStored(MagnetarError, OSError):
    """A file could not be written, because the disk is full or gone. Existing files are unchanged."""


class BadUrl(MagnetarError, ValueError):
    """pyarrow can't open a URL. The text says why."""


_SPARKS = "s3a://"
"""Spark's name of S3."""


class Storage:
    """A folder. Paths are relative to it and use ``/``. Pickles to what it was made of.

    Publication survives a crash of the process at any time. Like Spark's checkpoints on a local disk, it doesn't wait for
    the disk (no fsync).
    """

    def __init__(
        self,
        url: str,
        filesystem: fs.FileSystem | None = None,
        *,
        attempts: int | None = None,
        restore: str | None = None,
    ) -> None:
        """`url`: a local path, or a URI that pyarrow supports (such as ``file://``, ``s3://``, ``gs://``, ``hdfs://``). For
        ``s3://``, see `sinks.s3`.

        With a `filesystem`, `url` is a path on it. `attempts`: of a request to S3, see `sinks.s3.ATTEMPTS`. `restore`: what to do if
        a file is damaged, where that is not `RESTORE`. Raises `BadUrl` if a URI ends after its scheme.
        """
        # Make a relative path absolute here, because Spark's workers have another working directory.
        local = filesystem is None and ":/" not in url
        self.url = str(Path(url).absolute()) if local else url.rstrip("/")
        if filesystem is None and not local and ":/" not in self.url:
            raise BadUrl(f"{url} can't be opened: it names no folder; is a variable not set?")
        self._given, self._attempts, self.restore = filesystem, attempts, restore
        self._open: tuple[fs.FileSystem, str] | None = None

    def __getstate__(self) -> tuple[str, fs.FileSystem | None, int | None, str | None]:
        return self.url, self._given, self._attempts, self.restore

    def __setstate__(self, state: tuple[str, fs.FileSystem | None, int | None, str | None]) -> None:
        self.url, self._given, self._attempts, self.restore = state
        self._open = None

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    def _at(self, path: str) -> tuple[fs.FileSystem, str]:
        if self._open is None:
            if self._given is not None:
                self._open = self._given, self.url
            elif ":/" in self.url:
                try:
                    s3 = S3Url.parse(self.url)
                    self._open = (
                        fs.FileSystem.from_uri(self.url)
                        if s3 is None
                        else (s3.filesystem(attempts=self._attempts), s3.path)
                    )
                except (OSError, ValueError, pa.ArrowException) as error:
                    if self.url.startswith(_SPARKS):
                        raise BadUrl(
                            f"{self.url} can't be opened: write s3://{self.url.removeprefix(_SPARKS)}. Only a checkpoint has an {_SPARKS} URL"
                        ) from error
                    raise BadUrl(f"{self.url} can't be opened: {plain(error)}") from error
            else:
                self._open = fs.LocalFileSystem(), self.url
        filesystem, root = self._open
        return filesystem, f"{root}/{path}"

    def files(
        self, folder: str, *, recursive: bool = False, named: re.Pattern[str] | None = None
    ) -> list[fs.FileInfo]:
        """The files in a folder, sorted by path, empty if it doesn't exist. Paths are relative to the storage. `named`: only those whose
        names match; others are a file manager's, an editor's or a user's.

        Raises `Damaged` if the folder is a file.
        """
        filesystem, path = self._at(folder)
        try:
            found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=recursive))
        except NotADirectoryError:
            raise Damaged(
                f"{self.url}/{folder} is a file, and should be a folder. {self.restore or RESTORE}"
            ) from None
        files = (i for i in found if i.type == fs.FileType.File)
        return sorted(
            (i for i in files if named is None or named.fullmatch(i.base_name)), key=lambda i: str(i.path)
        )

    def has_folders(self) -> bool:
        """Whether there is a folder in it."""
        filesystem, path = self._at("")
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return any(info.type == fs.FileType.Directory for info in found)

    def path(self, path: str) -> str:
        """The path of a file on `filesystem`."""
        return self._at(path)[1]

    def relative(self, info: fs.FileInfo) -> str:
        """The path relative to this storage of a file from `files`."""
        root = self._at("")[1].lstrip("/")
        return str(info.path).lstrip("/").removeprefix(root)

    def info(self, path: str) -> fs.FileInfo | None:
        """Size and time of a file, or None if it doesn't exist."""
        filesystem, full = self._at(path)
        info = filesystem.get_file_info(full)
        return info if info.type == fs.FileType.File else None

    def infos(self, paths: Iterable[str]) -> dict[str, fs.FileInfo]:
        """Sizes and times of those files that exist, by path."""
        filesystem, root = self._at("")
        names = list(paths)
        found = filesystem.get_file_info([f"{root}{name}" for name in names])
        return {name: info for name, info in zip(names, found, strict=True) if info.type == fs.FileType.File}

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for random reads. Raises `FileNotFoundError`."""
        filesystem, full = self._at(path)
        file = filesystem.open_input_file(full)
        return pa.PythonFile(_Cleared(file), mode="r") if isinstance(filesystem, fs.S3FileSystem) else file

    def read_json(self, path: str, type_: type[T], what: str, to_do: str = RESTORE) -> T | None:
        """A JSON file as a msgspec struct, None if it doesn't exist. Raises `Damaged`, which says `what` the file has, and what
        `to_do`."""
        if self.info(path) is None:
            return None
        with self.open(path) as file:
            data = bytes(file.read())
        try:
            if is_whole(data):
                return msgspec.json.decode(data, type=type_)
            why = "its checksum is wrong"
        except UNDECODABLE as error:
            why = plain(error)
        raise Damaged(f"{self.url}/{path} ({what}) is damaged: {why}. {to_do}")

    def write_json(self, path: str, value: object) -> None:
        """Publish a msgspec struct as JSON with a checksum, for `read_json`. Raises `NotStored`."""
        self.publish(path, lambda stream: stream.write(sealed(msgspec.json.encode(value))))

    def publish(self, path: str, write: Callable[[pa.NativeFile], None]) -> None:
        """Create or replace a file with what `write` writes to its stream. It becomes visible when complete.

        Raises `NotStored`, and exceptions of `write`.
        """
        filesystem, target = self._at(path)
        with self._reported(path):
            if isinstance(filesystem, fs.S3FileSystem):
                _upload(filesystem, self._for_large, target, write)
            else:
                self._rename(filesystem, target, write)

    def take(self, source: "Storage", path: str) -> None:
        """Publish a file of another storage here, under its own path. Neither may change afterwards: on one local file system, both are the
        same file.

        Raises `FileNotFoundError`, `NotStored`.
        """
        here, there = self.folder, source.folder
        if here is not None and there is not None:
            with suppress(OSError):  # another disk, a file system without links, or a file that is replaced
                (here / path).parent.mkdir(parents=True, exist_ok=True)
                if (here / path).exists() and (here / path).samefile(there / path):
                    return
                (here / path).hardlink_to(there / path)
                return
        filesystem, target = self._at(path)
        if isinstance(filesystem, fs.S3FileSystem) and filesystem.equals(source.filesystem):
            if source.info(path) is None:
                raise FileNotFoundError(f"{source.url}/{path}")
            with self._reported(path):
                filesystem.copy_file(source.path(path), target)
            return

        def write(stream: pa.NativeFile) -> None:
            with source.open(path) as file:
                while piece := file.read(_PIECE):
                    stream.write(piece)

        self.publish(path, write)

    def _rename(self, filesystem: fs.FileSystem, target: str, write: Callable[[pa.NativeFile], None]) -> None:
        """Publish a file under its name when it is complete."""
        # Each attempt uses another name, because a task that Spark gave up may still be writing.
        name = f"{TEMPORARY}/{uuid4().hex}"
        temporary = self._at(name)[1]
        try:
            filesystem.create_dir(target.rpartition("/")[0], recursive=True)
            with self._create(filesystem, temporary) as stream:
                write(stream)
            filesystem.move(temporary, target)
            self._tidy()
        except BaseException:
            # Keep the first error, the cause: a failure to delete would only hide it.
            with suppress(OSError):
                self.delete(name)
            self._tidy()
            raise

    def _for_large(self) -> fs.FileSystem:
        """The file system, on S3 with a first request for each stream when that is opened, see `S3Url.filesystem`."""
        s3 = None if self._given is not None else S3Url.parse(self.url)
        return self.filesystem if s3 is None else s3.filesystem(attempts=self._attempts, delayed=False)

    @contextmanager
    def _reported(self, path: str) -> Iterator[None]:
        """Raise `NotStored` for an error of the file system while a file is published."""
        try:
            yield
        except (Damaged, FileNotFoundError):
            raise
        except OSError as error:
            raise NotStored(f"{self.url}/{path} could not be written: {plain(error)}") from error

    def _create(self, filesystem: fs.FileSystem, temporary: str) -> pa.NativeFile:
        """A stream to a new file in the folder of temporary files, which another publication may just have removed."""
        # Arrow finds that a folder exists, then looks for it: "File exists" if it was removed in between.
        for left in reversed(range(_TRIES)):
            with suppress(*([FileNotFoundError, FileExistsError] if left else [])):
                filesystem.create_dir(temporary.rpartition("/")[0], recursive=True)
                return filesystem.open_output_stream(temporary, compression=None)
        raise AssertionError

    def _tidy(self) -> None:
        """Remove the folder of temporary files if no publication uses it. Object stores have no empty folders."""
        filesystem, full = self._at(TEMPORARY)
        if isinstance(filesystem, fs.LocalFileSystem):
            with suppress(OSError):
                Path(full).rmdir()

    @property
    def filesystem(self) -> fs.FileSystem:
        """The file system, on which the paths of `files` are. Raises `BadUrl`."""
        return self._at("")[0]

    @property
    def folder(self) -> Path | None:
        """The folder on this machine's file system, or None if the storage is elsewhere. Raises `BadUrl`."""
        filesystem, root = self._at("")
        return Path(root) if isinstance(filesystem, fs.LocalFileSystem) else None

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        filesystem, full = self._at(path)
        try:
            filesystem.delete_file(full)
        except FileNotFoundError:
            return

    def sweep(self) -> None:
        """Delete the remains of killed publications, which have names of ours. Call it only while none is in progress."""
        for info in self.files(TEMPORARY):
            if _DRAFT.fullmatch(info.base_name):
                self.delete(f"{TEMPORARY}/{info.base_name}")
        self._tidy()


class _Cleared:
    """A file on S3 whose reads have zeros where S3 sent less than it was asked for.

    pyarrow gives as much as it asked for, and the rest is what its memory had before: perhaps a page of another file, with a
    checksum that is right.
    """

    closed = False

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.seek, self.tell, self.size = file.seek, file.tell, file.size

    def read(self, size: int) -> memoryview:
        data = bytearray(size)
        return memoryview(data)[: self._file.readinto(data)]

    def close(self) -> None:
        self._file.close()
        self.closed = True


def _upload(
    filesystem: fs.FileSystem,
    for_large: Callable[[], fs.FileSystem],
    target: str,
    write: Callable[[pa.NativeFile], None],
) -> None:
    """Publish a file on S3, which has no rename, but shows an object only when its upload is complete.

    What `write` writes goes into a file of this machine first: a stream to S3 can't be abandoned, so a `write` that failed in the
    middle would publish the first part of the file. `pyarrow.fs.copy_files` would lose an error of the last request.
    """
    with TemporaryDirectory(prefix="magnetar-") as folder:
        draft = f"{folder}/draft"
        with fs.LocalFileSystem().open_output_stream(draft, compression=None) as stream:
            write(stream)
        if Path(draft).stat().st_size <= _ONE_REQUEST:
            data = pa.py_buffer(Path(draft).read_bytes())
        else:
            data = pa.memory_map(draft).read_buffer()
            filesystem = for_large()
        with filesystem.open_output_stream(target, compression=None) as stream:
            stream.write(data)
        # A confirmation is not proof: behind a gateway whose disk is full, say, the file may be absent or cut. Later, nobody could
        # write it again.
        found = filesystem.get_file_info(target)
        if found.size != data.size:
            has = "has no such file" if found.size is None else f"has {found.size:,} bytes of it"
            raise OSError(f"S3 confirmed {data.size:,} bytes, and {has}")


def within(url: str, name: str) -> str:
    """The URL or path of a folder in the one at `url`, whose query stays."""
    folder, mark, query = url.partition("?") if ":/" in url else (url, "", "")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


def plain(error: BaseException) -> str:
    """An error's text on one line, as part of a sentence. Arrow's texts have several lines and repeat themselves."""
    if isinstance(error, OSError) and (of_s3 := failed(str(error))) is not None:
        return of_s3
    words = " ".join(_COLOURS.sub("", str(error)).split())
    if "Detail: [errno " in words:
        words = words.rpartition("] ")[2]
    return words.rstrip(".: ") or type(error).__name__
