"""Sinks: where the output rows of the query go. The contract is `sinks.base.Sink`; one module a sink."""
