"""A card's name for people, from the list of PCI ids that distributions ship.

Nothing is decided by a name; without the list a card is called by its ids.
"""

from __future__ import annotations

from virtgpu.host import paths
from virtgpu.inventory.reader import Reader


def look_up(reader: Reader, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The names of those (vendor, device) ids that the host's list has."""
    if not wanted:
        return {}
    for path in paths.PCI_IDS:
        text = reader.text(path)
        if text:
            found = {ids: find(text, *ids) for ids in wanted}
            return {ids: name for ids, name in found.items() if name is not None}
    return {}


def find(text: str, vendor: str, device: str) -> str | None:
    """The name of a device in pci.ids: `10de  NVIDIA` and below it a tab, `2235  GA102GL [A40]`."""
    start = text.find(f"\n{vendor}  ")
    if start < 0:
        return None
    at = text.find(f"\n\t{device}  ", start)
    if at < 0:
        return None
    between = text[text.find("\n", start + 1) : at]
    if any(line and line[0] not in "\t#" for line in between.splitlines()):
        return None  # the next vendor began before the device came
    line = text[at + 2 :].partition("\n")[0]
    name = line.partition("  ")[2].strip()
    head, bracket, rest = name.partition("[")
    return (rest.rstrip("]") if bracket else head).strip() or None
