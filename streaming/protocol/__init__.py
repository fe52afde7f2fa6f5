"""Pulsar's binary protocol without sockets: bytes ↔ frames, frames → commands, effects → frames."""
