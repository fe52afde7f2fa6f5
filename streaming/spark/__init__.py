"""The thin adapter: Spark brings records, keeps the broker's state and carries its effects to the sinks."""
