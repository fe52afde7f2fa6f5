"""Command logs: as files, as ingress partitions, under other policies."""
