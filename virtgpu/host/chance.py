"""Time and chance: the same behind every door."""

from __future__ import annotations

import os
from datetime import UTC, datetime


class TimeAndChance:
    """The clock and the random numbers of the machine that we run on."""

    def now(self) -> datetime:
        """The time in UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        import time

        time.sleep(seconds)

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        import time

        return time.monotonic()

    def new_uuid(self) -> str:
        """A random UUID (RFC 9562, version 4). The module uuid would say the same, after importing
        half of the platform: a tenth of a whole command."""
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        digits = raw.hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
