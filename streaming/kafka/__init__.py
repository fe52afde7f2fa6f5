"""Command logs in Kafka: connections, topics, producing, copying, and a local broker."""
