"""Dispatchers: which consumer gets which entry, and when."""
