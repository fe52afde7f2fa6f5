"""Canaries: other policies, judged on the traffic of a running query, beside it."""
