"""Recorded traces of a real Pulsar broker: read them, make command logs of them, compare with them."""
