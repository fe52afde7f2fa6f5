"""Clients that act on what they are given."""
