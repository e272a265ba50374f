"""Faults that a test or a curious operator injects into a simulated machine.

    3:EIO,5:stall,7:kill-before,9:kill-after,11:half

The third write fails with EIO, the fifth never comes back, before the seventh and after the ninth
the writing process is killed. Writes are counted from 1, runs of the vendor's tools among them: the
eleventh, if it is one, does half of its work and fails; a plain write fails with EIO then.
"""

from __future__ import annotations

import errno

from virtgpu.errors import Usage

VARIABLE = "VIRTGPU_SIM_FAULTS"
HALF = "half"
_WORDS = ("stall", "kill-before", "kill-after", HALF)


def parse(text: str) -> dict[int, str]:
    """The fault of each write; raises `Usage` that names what cannot be read."""
    found: dict[int, str] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        number, colon, fault = part.partition(":")
        known = fault in _WORDS or fault in errno.errorcode.values()
        if not colon or not number.isascii() or not number.isdecimal() or not known:
            raise Usage(
                f"{VARIABLE}: {part!r} is no fault",
                hint="write NUMBER:FAULT, with an errno's name, stall, kill-before or kill-after",
            )
        found[int(number[:9])] = fault
    return found
