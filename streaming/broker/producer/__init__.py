"""Producers: creation, access modes, publishing, deduplication."""
