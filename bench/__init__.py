"""Benchmarks. Each compares measurements within one run: trust the ratios, not the seconds."""
