"""States at any moment of a log, of a replay and of a query."""
