"""Quarantined records: look at them, repair them, send them again."""
