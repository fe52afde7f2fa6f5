"""The smallest policies that lose nothing."""
