"""``python -m tools.release``: writes to dist/ all that a release publishes.

* the source distribution, and the wheel that is built from it;
* the wheel of `magnetar-double`, which is installed alone and run before;
* the contexts of the images: what `deploy/Dockerfile` and `deploy/Dockerfile.double` copy, for ``docker build -f deploy/Dockerfile - < FILE``;
* a bill of materials (CycloneDX 1.6, JSON): the Python packages of the wheel with the versions and hashes of requirements.lock, the
  jars that Magnetar fetches, and those in pyspark;
* the notes, which are the version's entry in CHANGELOG.md, and SHA256SUMS.

Before anything is built, the entry must be there, nothing may be left under "Unreleased", and every file must be as it was committed.
``--draft`` builds whatever there is.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streaming import __version__
from streaming.runtime.jars import locked

ROOT = Path(__file__).parents[1]
MOST_BYTES = 60_000_000
"""What magnetar-double and all that it needs may take, installed."""
JAR_LISTS = ("spark-kafka", "s3a", "kafka-broker")

_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(error and f"the bill of materials does not follow CycloneDX: {str(error).splitlines()[0]}")
"""


class NotReady(RuntimeError):
    """The repository is not ready for a release. The text says why and what to do."""


def notes(changelog: str, version: str, *, draft: bool = False) -> str:
    """The entry of a version in the changelog; of a draft, what is unreleased. Raises `NotReady`."""
    entries = dict(re.findall(r"^## \[(.+?)\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.M | re.S))
    if draft:
        return str(entries.get("Unreleased", "")).strip()
    dated = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M)
    if dated is None or not entries[version].strip():
        raise NotReady(f'CHANGELOG.md has no entry "## [{version}] - YYYY-MM-DD" with text')
    if entries.get("Unreleased", "").strip():
        raise NotReady(
            f"CHANGELOG.md has unreleased changes, but {version} has an entry already: raise __version__ in streaming/__init__.py "
            'and make "Unreleased" its entry, or build a draft (make release DRAFT=1)'
        )
    return str(entries[version]).strip()


def context_files(dockerfile: Path) -> list[Path]:
    """The files that a Dockerfile copies from the repository, and the Dockerfile. Only what git knows."""
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile.read_text(), re.M)
    sources = [source for line in copied for source in line.split()]
    listed = _output("git", "ls-files", "--", *sources, dockerfile)
    return [ROOT / name for name in listed.splitlines()]


def write_context(files: list[Path], target: Path) -> None:
    """A tar archive that depends on nothing but names and contents of the files."""
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for file in sorted(files):
            info = tarfile.TarInfo(str(file.relative_to(ROOT)))
            info.size, info.mode = file.stat().st_size, 0o644
            archive.addfile(info, io.BytesIO(file.read_bytes()))


def jar_components() -> Iterator[dict[str, Any]]:
    """The CycloneDX components of all jars that Magnetar runs: those it fetches, and those in pyspark."""
    for name in JAR_LISTS:
        for jar in locked(name):
            yield _component(jar.group, jar.name, jar.version, jar.sha256, f"streaming/runtime/{name}.jars")
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    for file in sorted(Path(spark.origin).parent.glob("jars/*.jar")):
        with file.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        yield _component(*_coordinates(file), sha256, f"pyspark/jars/{file.name}")


def _coordinates(file: Path) -> tuple[str | None, str, str]:
    """Group (None: the jar does not say), name and version of a jar, by the properties that Maven puts into it."""
    name, _, version = file.stem.rpartition("-")
    with zipfile.ZipFile(file) as archive:
        for path in archive.namelist():
            if re.fullmatch(r"META-INF/maven/[^/]+/[^/]+/pom\.properties", path):
                group, artifact = path.split("/")[2:4]
                if file.stem.startswith(f"{artifact}-"):
                    return group, artifact, file.stem.removeprefix(f"{artifact}-")
    return None, name, version


def _component(group: str | None, name: str, version: str, sha256: str, origin: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{origin}#{name}-{version}",
        "name": name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "properties": [{"name": "magnetar:origin", "value": origin}],
    }
    if group is not None:
        found |= {"group": group, "purl": f"pkg:maven/{group}/{name}@{version}"}
    return found


def write_bill(target: Path, tools: Path) -> None:
    """The bill of materials, checked with CycloneDX's schema. `tools`: the folder with cyclonedx-py, its Python, and uv."""
    with tempfile.TemporaryDirectory() as scratch:
        runtime = Path(scratch) / "requirements.txt"
        _output(tools / "uv", "--system-certs", "pip", "compile", "-q", "pyproject.toml", "--extra", "java", "--universal", "--python-version", "3.11",
                "-c", "requirements.lock", "--generate-hashes", "--no-annotate", "--no-header", "-o", runtime)  # fmt: skip
        made = _output(tools / "cyclonedx-py", "requirements", runtime, "--pyproject", "pyproject.toml", "--of", "JSON",
                       "--sv", "1.6", "--output-reproducible", "-o", "-")  # fmt: skip
    bill = json.loads(made)
    root = bill["metadata"]["component"]
    root |= {"version": __version__, "purl": f"pkg:pypi/magnetar@{__version__}"}
    bill["components"] += jar_components()
    refs = [each["bom-ref"] for each in bill["components"]]
    bill["dependencies"] = [{"ref": ref} for ref in refs] + [{"ref": root["bom-ref"], "dependsOn": refs}]
    text = json.dumps(bill, indent=1, sort_keys=True)
    subprocess.run([tools / "python", "-c", _VALIDATE], input=text, text=True, check=True)
    target.write_text(text + "\n")


def build(folder: Path, tools: Path, *, draft: bool) -> list[Path]:
    """Everything, into an empty folder. Raises `NotReady`."""
    text = notes((ROOT / "CHANGELOG.md").read_text(), __version__, draft=draft)
    if not draft and (edited := _output("git", "status", "--porcelain")):
        raise NotReady(
            f"these files are not as they were committed:\n{edited}commit them, or build a draft (make release DRAFT=1)"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stem = f"magnetar-{__version__}"
    (folder / f"{stem}-notes.md").write_text(text + "\n")
    write_context(context_files(ROOT / "deploy/Dockerfile"), folder / f"{stem}-image.tar.gz")
    of_double = f"magnetar-double-{__version__}-image.tar.gz"
    write_context(context_files(ROOT / "deploy/Dockerfile.double"), folder / of_double)
    write_bill(folder / f"{stem}-sbom.cdx.json", tools)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        copy_source(source)
        size, seconds = tried(build_double(source, folder), Path(scratch) / "environment")
        print(f"magnetar-double: {size:,} bytes installed in {seconds:.0f} s")
        if size > MOST_BYTES:
            raise NotReady(f"magnetar-double takes {size:,} bytes, and should take at most {MOST_BYTES:,}")
        make = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
        _output(sys.executable, "-c", make, folder.absolute(), cwd=source)
        _output(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "wheel", "--no-deps", "--no-build-isolation",
                "-w", folder.absolute(), folder.absolute() / f"{stem}.tar.gz", cwd=Path(scratch))  # fmt: skip
    files = sorted(folder.iterdir())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (folder / "SHA256SUMS").write_text(sums)
    return files


def copy_source(folder: Path) -> None:
    """The files that git knows, as they are now: a build leaves folders behind."""
    for name in _output("git", "ls-files").splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def build_double(source: Path, folder: Path) -> Path:
    """The wheel of `magnetar-double`, made of `source` and put into `folder`."""
    _output(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "wheel", "--no-deps", "--no-build-isolation",
            "-w", folder.absolute(), source / "double", cwd=source)  # fmt: skip
    (wheel,) = folder.glob("magnetar_double-*.whl")
    return wheel


def tried(wheel: Path, environment: Path) -> tuple[int, float]:
    """Install a wheel of `magnetar-double` in a new environment, and run it. Returns the bytes that it took with all that it needs, and the
    seconds. Raises `NotReady` if it does not serve."""
    venv.create(environment, with_pip=True)
    before, began = _bytes(environment), time.monotonic()
    _output(environment / "bin/pip", "--disable-pip-version-check", "-q", "install", wheel.absolute())
    seconds, size = time.monotonic() - began, _bytes(environment) - before
    options = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--ready-file", "-")
    command = [str(environment / "bin/magnetar-double"), *options]
    with subprocess.Popen(command, cwd=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()  # nothing comes if it ends
        process.terminate()
    if not line.startswith('{"service_url": "pulsar://'):
        raise NotReady("magnetar-double does not serve where nothing else is installed")
    return size, seconds


def _bytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())


def _output(*command: str | Path, cwd: Path = ROOT) -> str:
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, stdout=subprocess.PIPE, text=True, check=True, env=quiet
    )
    return done.stdout


def main() -> int:
    """Build a release. The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("tools", type=Path, help="the folder with cyclonedx-py and uv")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--draft", action="store_true", help="with the unreleased changes as notes")
    given = parser.parse_args()
    try:
        files = build(given.out, given.tools, draft=given.draft)
    except NotReady as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for file in files:
        print(f"{file.stat().st_size:>12,}  {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
