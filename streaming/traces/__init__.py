"""Recorded traces of a real Pulsar broker: read them, make command logs of them, compare with them."""

from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"
"""Frames recorded from Apache Pulsar 4.0.7 and its official clients, one scenario a file."""
