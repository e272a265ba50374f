"""NVIDIA: vGPU types on VFs (vendor-specific VFIO or mediated devices) or on the PF, and MIG.

Which framework serves a card follows from its files, never from its model or the driver's
version: the same A40 has mediated devices on one kernel and `nvidia/` directories on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from virtgpu.host import paths
from virtgpu.inventory import slicing, vendor_vfio
from virtgpu.inventory.names import parse_gi_profile, parse_type
from virtgpu.inventory.pci import DISPLAY_CLASSES
from virtgpu.inventory.reader import Reader, number
from virtgpu.inventory.vendor import Card, Facts, Slicing
from virtgpu.model.gpu import Function, GiProfile, Mechanism, Mig, Missing, SliceType
from virtgpu.model.pci import PciAddress

name = "nvidia"


def claims(function: Function) -> bool:
    """A display of NVIDIA; the audio function of the same vendor is none."""
    return function.vendor_id == "10de" and function.class_code.startswith(DISPLAY_CLASSES)


def probe(reader: Reader, gpus: Sequence[Function]) -> Mapping[PciAddress, Facts]:
    """NVML, else nvidia-smi, else what procfs says; NVML knows only GPUs of its own driver."""
    ours = [gpu for gpu in gpus if gpu.driver == "nvidia"]
    if not ours:
        return {}
    with reader.door.nvml() as library:
        found = _ask(reader, library)
    return {gpu.address: _with_proc(reader, gpu, found.get(gpu.address, Facts())) for gpu in ours}


def _ask(reader: Reader, library: Any | None) -> dict[PciAddress, Facts]:
    # Imported when asked: a host has the one or the other.
    if library is not None:
        from virtgpu.inventory import nvml

        return nvml.read(library)
    from virtgpu.inventory import smi

    return smi.read(reader)


def _with_proc(reader: Reader, gpu: Function, facts: Facts) -> Facts:
    if facts.name is not None and facts.minor is not None:
        return facts
    said = parse_information(reader.text(paths.nvidia_information(gpu.address)) or "")
    minor = facts.minor if facts.minor is not None else number(said.get("Device Minor"))
    return msgspec.structs.replace(facts, name=facts.name or said.get("Model"), minor=minor)


def parse_information(text: str) -> dict[str, str]:
    """`Model: \\t\\t NVIDIA A100 80GB PCIe` and its like from /proc/driver/nvidia/gpus."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip() and value.strip()}


def types(reader: Reader, card: Card, facts: Facts) -> Slicing:
    """What the VFs list, else mediated devices on VFs or PF, else what would be there with VFs."""
    with_directory = frozenset(
        vf.address for vf in card.vfs if vendor_vfio.DIRECTORY in card.entries[vf.address]
    )
    if with_directory:
        found = _vendor_vfio(reader, card, facts, with_directory)
    else:
        found = slicing.by_mdev(reader, card) or _vfs_off(reader, card, facts)
    mode = facts.nvml.mig if facts.nvml is not None else None
    return msgspec.structs.replace(
        found,
        enable_vfs=_switch(reader, card),
        missing=_missing(reader, card, found),
        types=tuple(_with_gi_profile(one, mode) for one in found.types),
    )


def _switch(reader: Reader, card: Card) -> str | None:
    """NVIDIA's driver refuses a plain write to sriov_numvfs; the script that comes with the vGPU
    Manager makes the VFs, and a driver for bare metal has none."""
    usable = card.sriov is not None and card.sriov.usable and card.gpu.driver == "nvidia"
    return "sriov-manage" if usable and reader.door.exists(paths.NVIDIA_VGPU_MODULE) else None


def _missing(reader: Reader, card: Card, found: Slicing) -> Missing | None:
    """What VFs lack that are on and offer nothing, None where they offer or are off."""
    pf, count = card.gpu.address, len(card.vfs)
    if not count or found.framework is not None or card.gpu.driver != "nvidia":
        return None
    again = f"sriov-manage -d {pf} && sriov-manage -e {pf}"
    if not reader.door.exists(paths.NVIDIA_VGPU_MODULE):
        return Missing(
            reason=f"its {count} VFs offer nothing, since NVIDIA's vGPU Manager is not loaded",
            command="install the vGPU Manager of this driver, then: modprobe nvidia-vgpu-vfio",
        )
    drivers = {vf.driver for vf in card.vfs}
    if "nvidia" in drivers:
        return Missing(
            reason=f"its {count} VFs offer no types, as while NVIDIA's vGPU daemon does not run",
            command="systemctl restart nvidia-vgpud nvidia-vgpu-mgr",
        )
    if drivers != {None}:
        others = ", ".join(sorted(one for one in drivers if one is not None))
        return Missing(
            reason=f"its {count} VFs offer nothing, since they are bound to {others} in place of"
            " nvidia",
            command=again,
        )
    # "The value applies to VFs that are enabled afterwards": ABI/testing/sysfs-bus-pci.
    switch = paths.pci(pf, "sriov_drivers_autoprobe")
    if reader.text(switch) == "0":
        return Missing(
            reason=f"no driver is bound to its {count} VFs, since sriov_drivers_autoprobe is 0",
            command=f"echo 1 > /{switch} && {again}",
        )
    return Missing(reason=f"no driver is bound to its {count} VFs", command=again)


def _vendor_vfio(
    reader: Reader, card: Card, facts: Facts, with_directory: frozenset[PciAddress]
) -> Slicing:
    listing = vendor_vfio.read(reader, card.vfs, with_directory)
    known = {one.id: one for one in facts.nvml.types} if facts.nvml is not None else {}
    listed = {
        type_id: known.get(type_id) or vendor_vfio.named(type_id, text)
        for type_id, text in listing.names.items()
    }
    is_empty = all(vf.vgpu_type in ("0", None) for vf in listing.vfs)
    return Slicing(
        framework=Mechanism.VENDOR_VFIO,
        types=tuple((known | listed).values()),
        vfs=listing.vfs,
        # With a vGPU on the card, the lists leave out what no longer fits.
        complete=bool(known) or (is_empty and bool(listed)),
    )


def _vfs_off(reader: Reader, card: Card, facts: Facts) -> Slicing:
    nvml_facts = facts.nvml
    is_host = nvml_facts is not None and nvml_facts.virtualization_mode == "Host VGPU"
    if not is_host and (nvml_facts is None or nvml_facts.virtualization_mode is None):
        is_host = reader.door.exists(paths.NVIDIA_VGPU_MODULE)
    usable = card.sriov is not None and card.sriov.usable and card.gpu.driver == "nvidia"
    types = nvml_facts.types if nvml_facts is not None and usable else ()
    if reader.door.exists(paths.MDEV_BUS):
        types = tuple(_as_mdev(one) for one in types)
    return Slicing(
        types=types, vfs=card.vfs, complete=bool(types), expects_types=is_host and usable
    )


def _as_mdev(one: SliceType) -> SliceType:
    # A host with the mdev bus has had mediated devices on VFs; which it will be shows then.
    mechanism = Mechanism.MIG if one.mechanism is Mechanism.MIG else Mechanism.MDEV_VF
    return msgspec.structs.replace(one, id=f"nvidia-{one.id}", mechanism=mechanism)


def _with_gi_profile(one: SliceType, mode: Mig | None) -> SliceType:
    if one.mechanism is not Mechanism.MIG or one.gi_profile is not None or mode is None:
        return one
    parts = parse_type(one.name) if one.name else None
    if parts is None:
        return one
    fitting = [
        profile.name
        for profile in mode.profiles
        if _serves(profile, parts.gi_slices, parts.framebuffer_mib, parts.suffix)
    ]
    # Several GPU instance profiles of one size differ in engines: then the name does not say.
    return msgspec.structs.replace(one, gi_profile=fitting[0]) if len(fitting) == 1 else one


def _serves(profile: GiProfile, slices: int | None, size_mib: int, suffix: str) -> bool:
    parts = parse_gi_profile(profile.name)
    return (
        parts is not None
        and parts.slices == slices
        and parts.gb * 1024 == size_mib
        and parts.suffix == ("+me" if suffix == "ME" else "")
    )
