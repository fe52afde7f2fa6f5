"""Builds `magnetar-double` of the files of the repository around this folder.

They go into the package `magnetar_double`, which its command and its pytest plugin put on the path of their own process alone. So no
file of it is one of `magnetar`'s, and none gets in the way of an application that has a package named `streaming` or `schemas`.
"""

import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

FILES = (
    "LICENSE", "pytest_magnetar.py",
    "schemas/*.py", "schemas/commands/*.py", "schemas/expectations/inputs/*.json", "schemas/admin.openapi.json",
    "sinks/__init__.py", "sinks/base.py", "sinks/lock.py", "sinks/outputs.py", "sinks/sums.py",
    "streaming/__init__.py", "streaming/broker/**/*.py", "streaming/cli/__init__.py", "streaming/cli/double.py",
    "streaming/fold/__init__.py", "streaming/fold/live.py", "streaming/fold/record*.py",
    "streaming/log/__init__.py", "streaming/log/broker_settings.py", "streaming/metrics/*.py", "streaming/protocol/*.py",
    "streaming/quality/__init__.py", "streaming/quality/gate.py", "streaming/quality/inputs.py", "streaming/quality/row_gate.py",
    "streaming/quality/rules.py", "streaming/quality/suites.py", "streaming/runtime/*.py", "streaming/server/**/*.py",
)  # fmt: skip

NEEDED = {
    "cramjam", "crc32c", "google-re2", "mmh3", "msgspec", "prometheus_client", "protobuf", "pyjwt", "starlette", "uvicorn",
    "websockets",
}  # fmt: skip
"""Those of Magnetar's dependencies that a test double has, too."""


class Build(build_py):
    """Puts the files into the package."""

    def run(self) -> None:
        """Builds it."""
        shutil.rmtree(self.build_lib, ignore_errors=True)  # an earlier build's files would stay
        super().run()
        for pattern in FILES:
            for file in sorted(ROOT.glob(pattern)):
                target = Path(self.build_lib, "magnetar_double", file.relative_to(ROOT))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())


setup(
    version=re.search('__version__ = "(.+)"', (ROOT / "streaming/__init__.py").read_text())[1],
    install_requires=[each for each in PROJECT["dependencies"] if re.match(r"[\w-]+", each)[0] in NEEDED],
    license_expression=PROJECT["license"],
    author=PROJECT["authors"][0]["name"],
    project_urls=PROJECT["urls"],
    python_requires=PROJECT["requires-python"],
    classifiers=PROJECT["classifiers"],
    cmdclass={"build_py": Build},
)
