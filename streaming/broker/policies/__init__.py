"""Policies by level, and the admin calls that set them."""
