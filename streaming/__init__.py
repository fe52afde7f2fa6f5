"""Magnetar: Apache Pulsar's broker semantics as one Spark Structured Streaming query."""

__version__ = "0.1.0"
