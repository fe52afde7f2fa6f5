"""Traces recorded from a real Pulsar broker: read them, convert them to command logs, compare with them."""

from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"
"""Frames recorded from Apache Pulsar 4.0.7 and its official clients, one scenario per file."""
