"""Who has a function of a card in use by what its own driver makes of it.

Unbinding a sound function waits for whoever has one of its nodes open; unbinding a USB controller
takes the devices behind it away from the host, with what is mounted on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from virtgpu.host import paths
from virtgpu.inventory.holders import Holders
from virtgpu.inventory.pci import NOT_THE_HOSTS
from virtgpu.inventory.reader import Reader
from virtgpu.model.gpu import Holder
from virtgpu.model.pci import PciAddress

_AUDIO, _USB = "0403", "0c03"
# Names below a USB device: usb3 is a root hub, 3-1.2 a device, 3-1.2:1.0 an interface of one.
_USB_BUS, _USB_DEVICE, _USB_INTERFACE = r"usb\d+", r"\d+-\d+(\.\d+)*", r"\d+-[\d.]+:\d+\.\d+"
_DEEPEST = 7  # USB 2.0, 4.1.1: tiers, the root hub among them


def of_function(
    reader: Reader, held: Holders, one: PciAddress, class_code: str, driver: str | None
) -> tuple[Holder, ...] | None:
    """Who uses the function through its host driver; None is unknown."""
    if driver in NOT_THE_HOSTS:
        return ()
    found = _of_class(reader, held, one, class_code)
    if found is None:
        return None
    return tuple(msgspec.structs.replace(holder, function=one) for holder in found)


def _of_class(
    reader: Reader, held: Holders, one: PciAddress, class_code: str
) -> tuple[Holder, ...] | None:
    if class_code.startswith(_USB):
        return tuple(_usb_devices(reader, one))
    if class_code.startswith(_AUDIO):
        cards = _named(reader.names(paths.pci(one, "sound")), r"card\d+")
        return held.of_sound(cards) if cards else ()
    return of_i2c(reader.names(paths.pci(one)), held)


def of_i2c(names: Iterable[str], held: Holders) -> tuple[Holder, ...] | None:
    """Who has one of the I2C adapters among the names of a function's directory open."""
    adapters = _named(names, r"i2c-\d+")
    return held.of_i2c(adapters) if adapters else ()


def _usb_devices(reader: Reader, one: PciAddress) -> Iterator[Holder]:
    for bus in _named(reader.names(paths.pci(one)), _USB_BUS):
        yield from _below(reader, paths.pci(one, bus), _DEEPEST)


def _below(reader: Reader, path: str, deep: int) -> Iterator[Holder]:
    for name in _named(reader.names(path), _USB_DEVICE):
        device = f"{path}/{name}"
        names = reader.names(device)
        found = {reader.last(f"{device}/{part}/driver") for part in _named(names, _USB_INTERFACE)}
        drivers = ", ".join(sorted(driver for driver in found if driver not in (None, "hub")))
        if drivers:
            product = reader.text(f"{device}/product") or "device"
            yield Holder(file=f"usb {name}", command=f"USB {product} at {name} (driver {drivers})")
        if deep > 1:
            yield from _below(reader, device, deep - 1)


def _named(names: Iterable[str], pattern: str) -> list[str]:
    return sorted(name for name in names if re.fullmatch(pattern, name, re.ASCII))
