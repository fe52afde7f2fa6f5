"""`magnetar record` and `magnetar capture`: command logs of a real Pulsar."""
