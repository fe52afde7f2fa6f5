"""Non-persistent topics: nothing is stored, nothing is acknowledged."""
