"""Admin calls that concern no single topic."""
