"""Where the kernel shows things, relative to the host's root. No other module spells a path."""

from __future__ import annotations

from virtgpu.model.pci import PciAddress

PCI_DEVICES = "sys/bus/pci/devices"
PCI_DRIVERS = "sys/bus/pci/drivers"
PCI_PROBE = "sys/bus/pci/drivers_probe"
MDEV_DEVICES = "sys/bus/mdev/devices"
MDEV_BUS = "sys/class/mdev_bus"
IOMMU_GROUPS = "sys/kernel/iommu_groups"
NUMA_NODES = "sys/devices/system/node"
CPUS_ONLINE = "sys/devices/system/cpu/online"
HUGE_PAGES = "sys/kernel/mm/hugepages"
CPU_INFO = "proc/cpuinfo"
PRODUCT_UUID = "sys/class/dmi/id/product_uuid"
NVIDIA_VERSION = "sys/module/nvidia/version"
NVIDIA_VGPU_MODULE = "sys/module/nvidia_vgpu_vfio"
KERNEL_RELEASE = "proc/sys/kernel/osrelease"
KERNEL_ARCH = "proc/sys/kernel/arch"
DEVICE_TREE_MODEL = "sys/firmware/devicetree/base/model"
DEVICE_TREE_COMPATIBLE = "sys/firmware/devicetree/base/compatible"
PCI_IDS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")
PROC = "proc"
# Only a simulated machine has it: its proc is whole in a pid namespace of its own, too.
SIMULATED_MARK = "sys/module/virtgpu_sim/version"


def pci(address: PciAddress, *below: str) -> str:
    """A PCI device's directory, or a file below it."""
    return "/".join((PCI_DEVICES, address, *below))


def driver(name: str, *below: str) -> str:
    """A PCI driver's directory, or a file below it."""
    return "/".join((PCI_DRIVERS, name, *below))


def mdev(uuid: str, *below: str) -> str:
    """A mediated device's directory, or a file below it."""
    return "/".join((MDEV_DEVICES, uuid, *below))


def mdev_type(parent: PciAddress, type_id: str, *below: str) -> str:
    """A supported mdev type below its parent, or a file below it."""
    return pci(parent, "mdev_supported_types", type_id, *below)


def iommu_group_devices(group: int) -> str:
    """The directory that lists the members of an IOMMU group."""
    return f"{IOMMU_GROUPS}/{group}/devices"


def process(pid: int, *below: str) -> str:
    """A process' directory in procfs, or a file below it."""
    return "/".join((PROC, str(pid), *below))


def nvidia_information(address: PciAddress) -> str:
    """What NVIDIA's driver prints of one GPU: model, minor number."""
    return f"proc/driver/nvidia/gpus/{address}/information"


def numa_node(node: int, *below: str) -> str:
    """A memory node's directory, or a file below it."""
    return "/".join((NUMA_NODES, f"node{node}", *below))
