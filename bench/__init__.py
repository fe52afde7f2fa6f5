"""Benchmarks. Each compares measurements within one run: trust the ratios, not the seconds."""

import sys
from pathlib import Path

MAGNETAR = str(Path(sys.executable).with_name("magnetar"))
"""The command of the environment in which the benchmarks run, which need not be on the path."""
