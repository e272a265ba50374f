"""Reading attributes: a missing one is unknown, an unreadable one is unknown and said so."""

from __future__ import annotations

import errno

from virtgpu.host.door import Door
from virtgpu.model.pci import PciAddress

# What an attribute answers that is not there, or has no meaning now (a vGPU's placement while
# there is no vGPU: ENXIO), or whose device has just gone.
_ABSENT = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP)
)


class Reader:
    """Reads from one door and collects what could not be read, as sentences."""

    __slots__ = ("door", "warnings")

    def __init__(self, door: Door) -> None:
        self.door = door
        self.warnings: list[str] = []

    def text(self, path: str) -> str | None:
        """The text of an attribute without its newline; None when it is not there."""
        try:
            return self.door.read(path).strip()
        except OSError as error:
            self._note(path, error)
            return None

    def raw(self, path: str) -> str | None:
        """The text of an attribute as it is."""
        try:
            return self.door.read(path)
        except OSError as error:
            self._note(path, error)
            return None

    def number(self, path: str) -> int | None:
        """An attribute that is a decimal number; None when it is not one."""
        return number(self.text(path))

    def names(self, path: str) -> list[str]:
        """The names in a directory; none when it is not there."""
        try:
            return self.door.listdir(path)
        except OSError as error:
            self._note(path, error)
            return []

    def link(self, path: str) -> str | None:
        """The text of a symbolic link; None when it is not there."""
        try:
            return self.door.readlink(path)
        except OSError as error:
            self._note(path, error)
            return None

    def last(self, path: str) -> str | None:
        """The last component of a symbolic link: a driver's name, a group's number."""
        target = self.link(path)
        return target.rpartition("/")[2] if target is not None else None

    def _note(self, path: str, error: OSError) -> None:
        if error.errno not in _ABSENT:
            self.warnings.append(f"cannot read {path}: {error.strerror}")


def number(text: str | None) -> int | None:
    """A decimal number that is not negative, or None."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    return int(text)


def hex_id(text: str | None) -> str | None:
    """`0x10de` as `10de`, lower case; None when it is no hexadecimal number."""
    if text is None:
        return None
    digits = text.lower().removeprefix("0x")
    if not digits or len(digits) > 8 or not all(digit in "0123456789abcdef" for digit in digits):
        return None
    return digits


def address(name: str) -> PciAddress | None:
    """A name in sysfs as an address, or None: a cheap test before the thorough one.

    The kernel prints a full address only: DDDD:BB:SS.F with more digits of domain from 10000 up.
    """
    if len(name) < 12 or name[-2] != "." or name[-5] != ":" or name[-8] != ":":
        return None
    for part in (name[:-8], name[-7:-5], name[-4:-2], name[-1]):
        if hex_id(part) != part:
            return None
    found = PciAddress(name)
    is_real = found.parts.slot < 32 and found.parts.function < 8
    return found if is_real and PciAddress.of(found.parts) == name else None
