"""Managed ledgers and cursors: positions, acknowledgements, and what is written of them."""
