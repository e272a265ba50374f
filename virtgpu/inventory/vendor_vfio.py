"""NVIDIA's vendor-specific VFIO framework: a directory `nvidia/` on each VF.

`creatable_vgpu_types` comes in three spellings, of the same ids as the mdev framework:

    ID    : vGPU Name                with this header, or without it
    1145  : NVIDIA L40S-1B           number first (drivers 550 to 580)
    NVIDIA A40-1Q 557                name first (virtual GPU user guide 17)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from virtgpu.host import paths
from virtgpu.inventory.names import parse_type
from virtgpu.inventory.reader import Reader, number
from virtgpu.model.gpu import Mechanism, SliceType, Vf

DIRECTORY = "nvidia"


class Listing(msgspec.Struct):
    """What the VFs of one card list: each VF completed, and every name by id."""

    vfs: tuple[Vf, ...]
    names: Mapping[str, str]


def parse_creatable(text: str) -> dict[str, str]:
    """Type names by id, in the order of the file; an empty list is a fact.

    Raises ValueError with the first line that is neither header nor type: a swallowed one once
    hid all types of a host (https://github.com/kernel/hypeman/pull/327).
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped:
            continue
        entry = _entry(stripped)
        if entry is None:
            raise ValueError(stripped)
        if entry[0] != "ID":
            found[entry[0]] = entry[1]
    return found


def _entry(line: str) -> tuple[str, str] | None:
    head, colon, name = line.partition(":")
    head, name = head.strip(), name.strip()
    if colon and (number(head) is not None or head == "ID"):
        return (head, name) if name else None
    name, _, last = line.rpartition(" ")
    if name.strip() and number(last) is not None and parse_type(name) is not None:
        return last, name.strip()
    return None


def read(reader: Reader, vfs: Iterable[Vf], with_directory: frozenset[str]) -> Listing:
    """Complete the VFs that have the directory with what it says.

    The lists of a card's VFs are mostly the same text: it is parsed, and kept, once.
    """
    names: dict[str, str] = {}
    parsed: dict[str, tuple[str, ...] | None] = {}
    done = tuple(
        _read_vf(reader, vf, parsed, names) if vf.address in with_directory else vf for vf in vfs
    )
    return Listing(done, names)


def _read_vf(
    reader: Reader, vf: Vf, parsed: dict[str, tuple[str, ...] | None], names: dict[str, str]
) -> Vf:
    path = paths.pci(vf.address, DIRECTORY, "creatable_vgpu_types")
    text = reader.raw(path)
    creatable = None
    if text is not None:
        if text not in parsed:
            parsed[text] = _parse(reader, text, path, names)
        creatable = parsed[text]
    current = _current(reader, vf)
    if current in (None, "0"):
        return msgspec.structs.replace(vf, vgpu_type=current, creatable=creatable)
    # Both answer ENXIO while there is no vGPU, so they are read only where there is one.
    return msgspec.structs.replace(
        vf,
        vgpu_type=current,
        creatable=creatable,
        gpu_instance_id=reader.number(paths.pci(vf.address, DIRECTORY, "gpu_instance_id")),
        placement_id=reader.number(paths.pci(vf.address, DIRECTORY, "placement_id")),
    )


def _parse(reader: Reader, text: str, path: str, names: dict[str, str]) -> tuple[str, ...] | None:
    try:
        found = parse_creatable(text)
    except ValueError as error:
        reader.warnings.append(f"{path}: line {str(error)!r} is no vGPU type; the list is unknown")
        return None
    names.update(found)
    return tuple(found)


def _current(reader: Reader, vf: Vf) -> str | None:
    value = reader.number(paths.pci(vf.address, DIRECTORY, "current_vgpu_type"))
    return None if value is None else str(value)


def named(type_id: str, name: str) -> SliceType:
    """A type of which only id and name are known: its size is the documented one."""
    parts = parse_type(name)
    is_mig = parts is not None and parts.gi_slices is not None
    return SliceType(
        id=type_id,
        name=name,
        mechanism=Mechanism.MIG if is_mig else Mechanism.VENDOR_VFIO,
        framebuffer_mib=parts.framebuffer_mib if parts is not None else None,
        device_api="vfio-pci",
    )
