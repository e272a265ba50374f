"""Reading what nvidia-smi prints. Every field is held against its own grammar: an error
sentence arrives on stdout too (https://github.com/bigstack-oss/cubecos/issues/1486)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from virtgpu.errors import VirtgpuError
from virtgpu.inventory.reader import number
from virtgpu.model.gpu import GiProfile, GpuInstance
from virtgpu.model.pci import PciAddress

# The name comes last: it alone may hold anything.
QUERY = (
    "pci.bus_id",
    "index",
    "uuid",
    "memory.total",
    "memory.used",
    "mig.mode.current",
    "mig.mode.pending",
    "name",
)
_UUID = re.compile(r"GPU-[0-9a-f-]{1,64}", re.ASCII | re.IGNORECASE)
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII | re.IGNORECASE)
_UNKNOWN = ("n/a", "[n/a]", "[not supported]", "not supported", "[unknown error]", "err!", "")
_MODES = {"Enabled": True, "Disabled": False}
VIRTUALIZATION_MODES = ("None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA")
HOST_VGPU_MODES = ("SR-IOV", "Non SR-IOV")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of `--query-gpu`; None where nvidia-smi has no answer that fits the field."""

    address: PciAddress
    index: int | None = None
    uuid: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    mig_current: bool | None = None
    mig_pending: bool | None = None
    name: str | None = None


class Modes(msgspec.Struct, frozen=True, kw_only=True):
    """The virtualization part of `-q` for one GPU."""

    virtualization_mode: str | None = None
    host_vgpu_mode: str | None = None
    mixed_size: bool | None = None


def bus_id(text: str) -> PciAddress | None:
    """`00000001:C8:00.0` as an address; None for anything else, a sentence among them."""
    if _BUS_ID.fullmatch(text.strip()) is None:
        return None
    try:
        return PciAddress.parse(text)
    except VirtgpuError:
        return None


def parse_query(stdout: str) -> tuple[Row, ...]:
    """The rows of `--query-gpu=QUERY --format=csv,noheader,nounits` that name a PCI device."""
    rows = []
    for line in stdout.splitlines():
        fields = [field.strip() for field in line.split(",", len(QUERY) - 1)]
        address = bus_id(fields[0])
        if address is None or len(fields) != len(QUERY):
            continue
        _, index, uuid, total, used, current, pending, name = fields
        rows.append(
            Row(
                address=address,
                index=number(index),
                uuid=uuid if _UUID.fullmatch(uuid) else None,
                memory_total_mib=_mib(total),
                memory_used_mib=_mib(used),
                mig_current=_MODES.get(current),
                mig_pending=_MODES.get(pending),
                name=_known(name),
            )
        )
    return tuple(rows)


def _mib(text: str) -> int | None:
    return number(text.removesuffix("MiB").strip())


def _known(text: str) -> str | None:
    return None if text.casefold() in _UNKNOWN or not text.isprintable() else text


def parse_modes(stdout: str) -> dict[PciAddress, Modes]:
    """The modes of each GPU in `nvidia-smi -q`; "Supported" is a capability and no mode."""
    found: dict[PciAddress, Modes] = {}
    for address, lines in _sections(stdout):
        fields = dict(_fields(lines))
        virtualization = fields.get("virtualization mode")
        host = fields.get("host vgpu mode")
        found[address] = Modes(
            virtualization_mode=_one_of(virtualization, VIRTUALIZATION_MODES),
            host_vgpu_mode=_one_of(host, HOST_VGPU_MODES),
            mixed_size=_MODES.get(
                fields.get("vgpu heterogeneous mode", fields.get("vgpu heterogenous mode", ""))
            ),
        )
    return found


def _one_of(text: str | None, words: tuple[str, ...]) -> str | None:
    return next((word for word in words if text and word.casefold() == text.casefold()), None)


def _sections(stdout: str) -> Iterator[tuple[PciAddress, list[str]]]:
    address: PciAddress | None = None
    lines: list[str] = []
    for line in stdout.splitlines():
        head, _, rest = line.strip().partition(" ")
        found = bus_id(rest) if head == "GPU" else None
        if found is not None:
            if address is not None:
                yield address, lines
            address, lines = found, []
        else:
            lines.append(line)
    if address is not None:
        yield address, lines


def _fields(lines: list[str]) -> Iterator[tuple[str, str]]:
    # Values hold colons (bus ids, "N/A (Expiry: N/A)"): only the first one with blanks divides.
    for line in lines:
        key, colon, value = line.partition(" : ")
        if colon:
            yield key.strip().casefold(), value.strip()


_PROFILE = re.compile(r"\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)/(\d+)\s+([\d.]+)", re.ASCII)
_PLACEMENT = re.compile(
    r"GPU\s+(\d+)\s+Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d,]+)\}:(\d+)", re.ASCII
)
_INSTANCE = re.compile(r"\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)\s+\|", re.ASCII)
_COMPUTE = re.compile(
    r"\|\s+(\d+)\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)\s+\|", re.ASCII
)


def parse_profiles(lgip: str, lgipp: str) -> dict[int, tuple[GiProfile, ...]]:
    """GPU instance profiles by GPU index, from `mig -lgip` and `mig -lgipp`."""
    places: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}
    for match in _PLACEMENT.finditer(lgipp):
        starts = tuple(sorted(int(one) for one in match[3].split(",") if one))
        places[int(match[1]), int(match[2])] = (starts, int(match[4]))
    found: dict[int, list[GiProfile]] = {}
    for match in _PROFILE.finditer(lgip):
        gpu, profile = int(match[1]), int(match[3])
        starts, size = places.get((gpu, profile), ((), 0))
        found.setdefault(gpu, []).append(
            GiProfile(
                id=profile,
                name=match[2],
                slices=_slices(match[2]),
                size=size,
                starts=starts,
                max_instances=int(match[5]),
                memory_mib=_gib_as_mib(match[6]),
                free=int(match[4]),
            )
        )
    return {gpu: tuple(profiles) for gpu, profiles in found.items()}


def _slices(name: str) -> int:
    head = name.partition("g.")[0]
    return number(head) or 0


def _gib_as_mib(text: str) -> int | None:
    try:
        return round(float(text) * 1024)
    except ValueError:
        return None


def parse_instances(lgi: str, lci: str) -> dict[int, tuple[GpuInstance, ...]]:
    """GPU instances by GPU index, from `mig -lgi` and `mig -lci`; none is no error."""
    computes: dict[tuple[int, int], set[int]] = {}
    for match in _COMPUTE.finditer(lci):
        computes.setdefault((int(match[1]), int(match[2])), set()).add(int(match[5]))
    found: dict[int, list[GpuInstance]] = {}
    for match in _INSTANCE.finditer(lgi):
        gpu, instance = int(match[1]), int(match[4])
        found.setdefault(gpu, []).append(
            GpuInstance(
                id=instance,
                profile_id=int(match[3]),
                start=int(match[5]),
                size=int(match[6]),
                compute_instances=tuple(sorted(computes.get((gpu, instance), ()))),
            )
        )
    return {
        gpu: tuple(sorted(instances, key=lambda one: (one.start, one.id)))
        for gpu, instances in found.items()
    }
