"""What applying needs of the outside: the door, the vendors, and fresh answers about devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from virtgpu.errors import Conflict, NotFound
from virtgpu.host import paths
from virtgpu.host.door import Door
from virtgpu.inventory import holders, read_host
from virtgpu.inventory.function_holders import of_function
from virtgpu.inventory.holders import Holders
from virtgpu.inventory.reader import Reader, hex_id, number
from virtgpu.inventory.vendor import Vendor
from virtgpu.model.gpu import Gpu, Holder, Host
from virtgpu.model.pci import PciAddress


class World(NamedTuple):
    """One host that is being changed."""

    door: Door
    vendors: Sequence[Vendor]

    def read(self) -> Host:
        """The host as it is now."""
        return read_host(self.door, self.vendors)

    def gpu(self, address: PciAddress) -> Gpu:
        """One GPU as it is now; raises `NotFound`."""
        found = self.read().gpu(address)
        if found is None:
            raise NotFound(f"there is no GPU {address} any more", hint="see: virtgpu gpu list")
        return found


def refuse_held(found: Sequence[Holder] | None, what: str, hint: str) -> None:
    """Raise `Conflict` unless it is known that nobody has the device: the kernel would wait for
    its holder, for ever."""
    if found is None:
        raise Conflict(
            f"who holds {what} is unknown: not every process of this host can be looked into",
            hint="run as root, outside of containers",
        )
    if found:
        one = found[0]
        if one.pid is None:
            raise Conflict(f"{what} is in use: {one.command or one.file}", hint=hint)
        raise Conflict(
            f"{what} is held by pid {one.pid} ({one.command}), which has {one.file} open", hint=hint
        )


def vfio_holders(door: Door, address: PciAddress) -> tuple[Holder, ...] | None:
    """Who has the PCI function open by VFIO, from a fresh look at all processes."""
    return _by_vfio(Reader(door), holders.scan(door), address)


def _by_vfio(reader: Reader, held: Holders, address: PciAddress) -> tuple[Holder, ...] | None:
    group = number(reader.last(paths.pci(address, "iommu_group")))
    cdev = next(iter(sorted(reader.names(paths.pci(address, "vfio-dev")))), None)
    return held.of_vfio(group, cdev)


def function_holders(door: Door, address: PciAddress) -> tuple[Holder, ...] | None:
    """Who uses a function beside a GPU, by VFIO or by its host driver, from a fresh look."""
    reader, held = Reader(door), holders.scan(door)
    code = hex_id(reader.text(paths.pci(address, "class"))) or ""
    driver = reader.last(paths.pci(address, "driver"))
    own = of_function(reader, held, address, code, driver)
    by_vfio = _by_vfio(reader, held, address)
    return None if own is None or by_vfio is None else (*by_vfio, *own)


def mdev_holders(door: Door, uuid: str) -> tuple[Holder, ...] | None:
    """Who has the mediated device open, from a fresh look at all processes."""
    group = number(Reader(door).last(paths.mdev(uuid, "iommu_group")))
    return holders.scan(door).of_vfio(group, None)
