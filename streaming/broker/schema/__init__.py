"""Schemas: the registry, definitions, compatibility."""
