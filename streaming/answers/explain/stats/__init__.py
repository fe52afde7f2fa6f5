"""The same answers from what a cluster's admin API shows of a topic, instead of a broker's state."""
