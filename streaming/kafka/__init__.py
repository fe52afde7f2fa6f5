"""Kafka: settings, topics, producing, and a local broker."""
