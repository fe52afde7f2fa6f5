"""A broker's state as bytes."""
