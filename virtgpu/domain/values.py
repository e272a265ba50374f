"""Values as libvirt writes them in text: sizes with units, lists of CPUs and nodes, yes and on."""

from __future__ import annotations

from lxml import etree

from virtgpu.domain.topology import number

# virScaleInteger: k, KiB are 1024, KB is 1000; without case; b and bytes are 1.
_POWERS = {letter: power for power, letter in enumerate("kmgtpe", 1)}


def size(node: etree._Element | None, *, default: str = "KiB") -> int | None:
    """The bytes that an element says, None when it is not there or cannot be read.

    *default* is the unit without a `unit` attribute (formatdomain: KiB for memory).
    """
    return None if node is None else scaled(node.text, node.get("unit", default))


def scaled(amount: str | None, unit: str) -> int | None:
    """The bytes of an amount in a unit, None when one of them cannot be read."""
    count, scale = number(amount), factor(unit)
    return None if count is None or scale is None else count * scale


def factor(unit: str) -> int | None:
    """The bytes of a unit, None for one that libvirt does not know.

    >>> factor("KiB"), factor("kb"), factor("G"), factor("bytes"), factor("pages")
    (1024, 1000, 1073741824, 1, None)
    """
    text = unit.strip().lower()
    if text in ("b", "byte", "bytes"):
        return 1
    power = _POWERS.get(text[:1])
    if power is None or text[1:] not in ("", "ib", "b"):
        return None
    return int((1000 if text[1:] == "b" else 1024) ** power)


def numbers_of(text: str | None) -> frozenset[int] | None:
    """A list as `0-3,^2,8`, None when it cannot be read.

    >>> sorted(numbers_of("0-3,^2,8"))
    [0, 1, 3, 8]
    """
    found: set[int] = set()
    for part in (text or "").split(","):
        word = part.strip()
        is_out = word.startswith("^")
        first, dash, last = word.removeprefix("^").partition("-")
        low = number(first)
        high = number(last) if dash else low
        if low is None or high is None or not low <= high < 1 << 16:
            return None
        found = found - {low} if is_out else found | set(range(low, high + 1))
    return frozenset(found)


def list_of(found: frozenset[int]) -> str:
    """Numbers as libvirt lists them.

    >>> list_of(frozenset({0, 1, 3, 8}))
    '0-1,3,8'
    """
    parts: list[list[int]] = []
    for one in sorted(found):
        if parts and one == parts[-1][1] + 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def size_text(amount: int) -> str:
    """Bytes for people: exact in the largest unit that divides them, so nothing is rounded.

    >>> size_text(18253611008), size_text(1000)
    ('17 GiB', '1000 bytes')
    """
    for power in range(6, 0, -1):
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power} {'KMGTPE'[power - 1]}iB"
    return f"{amount} bytes"
