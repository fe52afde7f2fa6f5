"""What became of a message, and why."""
