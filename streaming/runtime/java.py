"""Which Java to use."""
