"""Bytes or texts that are no JSON or MessagePack value."""

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec's decoders raise for a value that is malformed, whose text is not UTF-8, or that nests deeper than the stack allows."""
