"""Metrics for Prometheus: Pulsar's of topics and subscriptions, and the query's own."""
