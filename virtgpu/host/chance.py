"""Chance: fresh UUIDs."""

from __future__ import annotations

import os


def new_uuid() -> str:
    """A random UUID (RFC 9562, version 4). The module uuid would say the same, after importing
    half of the platform: a tenth of a whole command."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
