"""One process writes to a folder or a store, and a dead one keeps nobody out."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyarrow import fs

from sinks import lock
from sinks.lock import LOCK, Holder, InUse, LeaseLost, NotWritable, exclusive, reading
from sinks.storage import BadUrl, NotStored, Storage

HOLD = """
import sys, time
from sinks.lock import exclusive
with exclusive(sys.argv[1:], "the other"):
    print("held", flush=True)
    time.sleep(60)
"""


def other(*folders: Path) -> subprocess.Popen[bytes]:
    """A process that holds folders."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, *map(str, folders)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_folder_until_its_holder_is_dead(tmp_path: Path, number: int) -> None:
    process = other(tmp_path / "a", tmp_path / "b")
    try:
        for folders in ([tmp_path / "b"], [tmp_path / "c", tmp_path / "a"]):
            with pytest.raises(InUse) as raised, exclusive(map(str, folders), "mine"):
                pass
            assert str(raised.value).startswith(
                f"{folders[-1]} is in use by the other (pid {process.pid} on "
            )
            assert "empty" not in str(raised.value)
        assert not (tmp_path / "c").exists()
    finally:
        process.send_signal(number)
        process.wait()
    with exclusive([str(tmp_path / "a"), str(tmp_path / "b")], "mine"):
        pass
    assert list(tmp_path.rglob(LOCK)) == []


def test_what_stays(tmp_path: Path) -> None:
    """Folders that were there, and those that got contents."""
    (tmp_path / "there").mkdir()
    names = ("there", "new/deep", "used/deep")
    with exclusive([str(tmp_path / name) for name in names], "mine"):
        (tmp_path / "used" / "deep" / "file").touch()
    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")) == [
        "there", "used", "used/deep", "used/deep/file",
    ]  # fmt: skip


def test_one_folder_by_several_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with exclusive(["a", str(tmp_path / "a")], "mine"):
        for name in ("a", f"file://{tmp_path}/a"):
            with pytest.raises(InUse), exclusive([name], "other"):
                pass


@pytest.mark.parametrize("name", ["sp ace", "per%20cent", "ünïcode", "a,b;c'd\"e", "[x]{y}*?"])
def test_names(tmp_path: Path, name: str) -> None:
    with exclusive([str(tmp_path / name)], "mine"):
        assert (tmp_path / name / LOCK).exists()


def test_places_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotWritable, match="it is not a folder"), exclusive([str(folder)], "mine"):
            pass
    with pytest.raises(NotWritable, match="/proc/x can't be written"), exclusive(["/proc/x"], "mine"):
        pass
    with pytest.raises(BadUrl, match="ftp://a/b can't be opened"), exclusive(["ftp://a/b"], "mine"):
        pass
    for url in ("s3://", "file:///"):
        with pytest.raises(BadUrl, match=f"{url} can't be opened: it names no folder"):
            Storage(url)


def test_only_one_of_many_at_once(tmp_path: Path) -> None:
    """Also while holders come and go, and remove their folder behind them."""
    inside, most, turns = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, turns
        ends = time.monotonic() + 1
        while time.monotonic() < ends:
            try:
                with exclusive([str(tmp_path / "a" / "b")], "mine"):
                    inside += 1
                    most = max(most, inside)
                    turns += 1
                    time.sleep(0.001)
                    inside -= 1
            except InUse:
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == 1
    assert turns > 1
    assert list(tmp_path.rglob(LOCK)) == []


# -- leases


@pytest.fixture
def leased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A store on a file system without locks, whose leases last for a moment."""
    for name, seconds in (("RENEW", 0.05), ("EXPIRE", 0.6), ("SETTLE", 0.05)):
        monkeypatch.setattr(lock, f"{name}_SECONDS", seconds)
    monkeypatch.setattr(lock, "_locked", lambda folder, holder, held: nullcontext(False))
    return Storage(str(tmp_path / "store"))


def test_a_lease(leased: Storage) -> None:
    with exclusive([leased.url], "first") as held:
        with pytest.raises(InUse, match="is in use by first "), exclusive([leased.url], "second"):
            pass
        held.check()
    assert leased.info(LOCK) is None
    with exclusive([leased.url], "second"):
        pass


def test_the_lease_of_a_dead_holder(leased: Storage) -> None:
    """No clock but the own one counts: this holder's is a century ahead."""
    dead = Holder("dead", "elsewhere", 1, 2**42, "x")
    lock._renew(leased, dead)
    begun = time.monotonic()
    with exclusive([leased.url], "mine") as held:
        assert time.monotonic() - begun > lock.EXPIRE_SECONDS
        held.check()


def test_a_lease_that_is_taken_over(leased: Storage) -> None:
    lost = threading.Event()
    with exclusive([leased.url], "first") as held:
        held.on_loss(lost.set)
        thief = Holder("thief", "elsewhere", 1, 0, "y")
        # The renewal in progress may come after it.
        while not lost.wait(0.2):
            lock._renew(leased, thief)
        with pytest.raises(LeaseLost, match="was taken over by thief"):
            held.check()
    assert lock._lease(leased) == thief  # it is left alone


def test_a_renewal_whose_answer_is_lost(leased: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the store has it: the lease is this process's."""
    done, renew, renewed = [True, False], lock._renew, threading.Event()

    def without_answer(storage: Storage, holder: lock.Holder) -> None:
        if holder.renewal and not done:
            renewed.set()
        if not holder.renewal or (done and done.pop()):
            renew(storage, holder)
        if holder.renewal:
            raise NotStored("no answer")

    monkeypatch.setattr(lock, "_renew", without_answer)
    with exclusive([leased.url], "mine") as held:
        assert renewed.wait(30)
        held.check()


def test_two_that_come_at_once(leased: Storage) -> None:
    barrier, inside, refused = threading.Barrier(4), [], []

    def come(name: str) -> None:
        barrier.wait()
        try:
            with exclusive([leased.url], name):
                inside.append(name)
                barrier.wait()
        except InUse:
            refused.append(name)
            barrier.wait()

    threads = [threading.Thread(target=come, args=(f"{number}",)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(inside), len(refused)) == (1, 3)


def test_a_store_that_is_away_for_too_long(leased: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = threading.Event()

    def away(storage: Storage) -> None:
        raise OSError("no route to host")

    with exclusive([leased.url], "mine") as held:
        held.on_loss(lost.set)
        monkeypatch.setattr(lock, "_lease", away)
        assert lost.wait(10)
        with pytest.raises(LeaseLost, match="could not be renewed: no route to host"):
            held.check()


def test_a_file_system_of_another_machine_has_a_lease(leased: Storage) -> None:
    remote = Storage("x", fs.SubTreeFileSystem(leased.url, fs.LocalFileSystem()))
    assert remote.folder is None


def test_no_lock_is_inherited(tmp_path: Path) -> None:
    """Spark's JVM and the workers outlive a driver that is killed, for a moment."""
    with exclusive([str(tmp_path)], "mine"):
        file = os.open(tmp_path / LOCK, os.O_RDONLY)
        held = [os.get_inheritable(int(fd)) for fd in os.listdir("/dev/fd") if _is(fd, file)]  # noqa: PTH208
        os.close(file)
    assert held
    assert not any(held)


def _is(fd: str, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(int(fd)), os.fstat(file))
    except OSError:
        return False


@pytest.mark.parametrize("inherited", ["read", "written"])
def test_a_worker_that_was_forked_keeps_no_lock(tmp_path: Path, inherited: str) -> None:
    """It may live on when its parent was killed."""
    wait, end = os.pipe()
    began, begin = os.pipe()
    holding = reading([tmp_path]) if inherited == "read" else exclusive([str(tmp_path)], "one", alone=True)
    with holding:
        if (worker := os.fork()) == 0:
            os.close(end)
            os.write(begin, b"1")
            os.read(wait, 1)
            os._exit(0)
        os.read(began, 1)
    try:
        with exclusive([str(tmp_path)], "another", alone=True):
            pass
    finally:
        for each in (end, wait, began, begin):
            os.close(each)
        os.waitpid(worker, 0)


def test_a_lock_that_nobody_would_see(tmp_path: Path) -> None:
    """That of a file which somebody removed, or replaced, before it was locked."""
    path = tmp_path / "x"
    with path.open("wb") as file:
        assert lock.hold(file.fileno(), path, fcntl.LOCK_SH)
        path.unlink()
        assert not lock.hold(file.fileno(), path, fcntl.LOCK_SH)
        path.touch()
        assert not lock.hold(file.fileno(), path, fcntl.LOCK_SH)
