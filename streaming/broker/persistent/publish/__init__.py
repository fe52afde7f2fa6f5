"""Publishing, message by message and in runs, and deduplication."""
