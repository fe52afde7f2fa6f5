"""What runs for a while: replays, the live query, the demonstration."""
