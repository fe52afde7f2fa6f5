"""A real Pulsar beside `magnetar serve`: the same admin calls to both."""
