"""Hosts of real size, from one description for both sides: a profile for our simulated host, the
same devices as node XML for libvirt's test driver, and the same files as a tree on disk.

The card is that of the shipped profile a40x2-mdev-vf: mediated devices on VFs, 29 types.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from lxml import etree

from virtgpu.sim.kernel import Kernel
from virtgpu.sim.profiles import Profile
from virtgpu.sim.tree import Node

Json = dict[str, Any]

_BASE = "a40x2-mdev-vf.json"
_FIRST_BUS, _BUSES_EACH, _FIRST_VF = 0x11, 0x08, 4
_IN_USE = "NVIDIA A40-3Q"  # sixteen fit on one card


def profile(gpus: int, vfs: int, in_use: int = 0) -> Json:
    """A host of *gpus* cards with *vfs* VFs each; *in_use* mediated devices in turns."""
    raw: Json = json.loads(files("virtgpu.sim").joinpath("profiles", _BASE).read_text())
    card, facts = raw["pci"][0], raw["nvml"]["devices"][0]
    raw["name"] = f"bench-{gpus}x{vfs}-{in_use}"
    raw["pci"] = [_card(card, number, gpus, vfs) for number in range(gpus)]
    raw["nvml"]["devices"] = [
        facts
        | {
            "index": number,
            "minor": number,
            "uuid": f"GPU-00000000-0000-4000-8000-{number:012x}",
            "pci_bus_id": f"0000{one['address'].upper()}",
        }
        for number, one in enumerate(raw["pci"])
    ]
    raw["nvml"]["vgpus"] = []
    kind = next(one["id"] for one in raw["mdev_types"]["A40"] if one["name"] == _IN_USE)
    raw["mdev_devices"] = [
        {
            "uuid": f"00000000-0000-4000-8000-{number:012x}",
            "parent": vf_address(raw["pci"][number % gpus], number // gpus),
            "type": kind,
        }
        for number in range(in_use)
    ]
    return raw


def _card(base: Json, number: int, gpus: int, vfs: int) -> Json:
    group = 100 + number * (vfs + 1)
    return base | {
        "address": f"0000:{_FIRST_BUS + number * _BUSES_EACH:02x}:00.0",
        "numa_node": number * 2 // gpus,
        "iommu_group": group,
        "sriov": base["sriov"] | {"totalvfs": vfs, "numvfs": vfs, "offset": _FIRST_VF},
        "vf": base["vf"] | {"iommu_group_first": group + 1},
    }


def vf_address(card: Json, index: int) -> str:
    """The address of a card's VF."""
    number = _FIRST_VF + index
    return f"{card['address'][:8]}{number >> 3:02x}.{number & 7}"


# -- the same machine for libvirt's test driver


def node_xml(raw: Json) -> bytes:
    """The functions as `virsh nodedev-dumpxml` prints them, each VF with its types."""
    node = etree.Element("node")
    for card in raw["pci"]:
        types = raw["mdev_types"][card["mdev"]["types_ref"]]
        pf = _function(node, card["address"], card["numa_node"], card["iommu_group"])
        virtual = etree.SubElement(pf, "capability", type="virt_functions")
        for index in range(card["sriov"]["numvfs"]):
            address = vf_address(card, index)
            _place(virtual, address)
            group = card["vf"]["iommu_group_first"] + index
            vf = _function(node, address, card["numa_node"], group)
            _place(etree.SubElement(vf, "capability", type="phys_function"), card["address"])
            _add_types(etree.SubElement(vf, "capability", type="mdev_types"), types)
    return etree.tostring(node, pretty_print=True)


def _add_types(parent: etree._Element, types: list[Json]) -> None:
    for one in types:
        kind = etree.SubElement(parent, "type", id=one["id"])
        etree.SubElement(kind, "name").text = one["name"]
        etree.SubElement(kind, "deviceAPI").text = one["device_api"]
        etree.SubElement(kind, "availableInstances").text = "1"


def nodedev_name(address: str) -> str:
    """libvirt's name of a PCI function."""
    return "pci_" + address.replace(":", "_").replace(".", "_")


def _function(node: etree._Element, address: str, numa: int, group: int) -> etree._Element:
    device = etree.SubElement(node, "device")
    etree.SubElement(device, "name").text = nodedev_name(address)
    etree.SubElement(device, "parent").text = "computer"
    found = etree.SubElement(device, "capability", type="pci")
    etree.SubElement(found, "class").text = "0x030200"
    for name, value in zip(("domain", "bus", "slot", "function"), _numbers(address), strict=True):
        etree.SubElement(found, name).text = str(value)
    etree.SubElement(found, "product", id="0x2235").text = "GA102GL [A40]"
    etree.SubElement(found, "vendor", id="0x10de").text = "NVIDIA Corporation"
    _place(etree.SubElement(found, "iommuGroup", number=str(group)), address)
    etree.SubElement(found, "numa", node=str(numa))
    return found


def _place(parent: etree._Element, address: str) -> None:
    names = ("domain", "bus", "slot", "function")
    values = (f"0x{one:02x}" for one in _numbers(address))
    etree.SubElement(parent, "address", dict(zip(names, values, strict=True)))


def _numbers(address: str) -> tuple[int, int, int, int]:
    domain, bus, rest = address.split(":")
    return int(domain, 16), int(bus, 16), int(rest[:2], 16), int(rest[3:])


# -- the same machine as files


def lay_out(raw: Json, root: Path) -> Path:
    """Write what the simulated kernel shows as a tree of files below *root*."""
    root.mkdir(parents=True)
    for node in Kernel(Profile(raw["name"], raw)).tree.walk():
        _lay_out(node, Path(f"{root}{node.path}"))
    return root


def _lay_out(node: Node, path: Path) -> None:
    if node.is_directory:
        path.mkdir(exist_ok=True)
    elif node.is_link:
        path.symlink_to(node.readlink())
    elif node.read is not None:
        found = node.read()
        path.write_bytes(found.encode() if isinstance(found, str) else found)
