"""Command logs: in files, with ingress partitions, under other policies."""
