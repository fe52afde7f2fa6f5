"""Scenarios, all orders of their steps, what must hold in each, and the smallest log that breaks it."""
