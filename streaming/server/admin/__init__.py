"""Pulsar's admin REST API and its HTTP lookup."""
