"""Pulsar's WebSocket API on the web port, as a standalone Pulsar serves it (mirrors the module pulsar-websocket; docs/operate/websocket.md).

In Pulsar, the service is a client of the broker, and so it is here: each WebSocket has a connection of its own to `BinaryServer`, in memory,
and sends it the frames that a client of the binary protocol would. Gates, authorization, limits and rows are those of any connection.
"""
