"""Quarantined records: inspect them, repair them and resubmit them."""
