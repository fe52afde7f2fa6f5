"""Rates and their limits."""
