"""Managed ledgers and cursors: positions, acknowledgements, rollover and trimming."""
