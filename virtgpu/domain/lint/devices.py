"""VG2xx: the host's devices in the guest."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from virtgpu.domain import elements
from virtgpu.domain.lint.addresses import out_of_range
from virtgpu.domain.lint.model import Hit, Subject, rule
from virtgpu.domain.read import HostDevice
from virtgpu.domain.target import UNMANAGED_VARIANT
from virtgpu.model.view import HostFunction

_ASPEED, _MATROX = "1a03", "102b"


def _known(s: Subject) -> Iterator[tuple[etree._Element, HostDevice, HostFunction]]:
    """The PCI host devices that the host has."""
    for node, device in s.hostdevs:
        one = s.host_function(device)
        if one is not None:
            yield node, device, one


@rule(
    "VG201",
    "double-device",
    "error",
    why="One device of the host is given twice, perhaps in two spellings of its address. libvirt"
    " from 7.6 on refuses it when it is defined, older ones leave it to QEMU.",
    remedy="remove one of the two",
    source="https://github.com/truenas/middleware/pull/18767; libvirt 9.0 domain_validate.c,"
    " 'Hostdev already exists in the domain configuration'",
)
def double_device(s: Subject) -> Iterator[Hit]:
    seen: dict[str, etree._Element] = {}
    for node, device in s.hostdevs:
        first = seen.setdefault(device.key, node)
        # Two disks can be two namespaces of one NVMe controller.
        if first is not node and (node.tag, first.tag) != ("disk", "disk"):
            yield Hit(
                node,
                f"host device {device.key} is given twice (first on line {first.sourceline})",
            )


@rule(
    "VG202",
    "shared-device",
    "error",
    why="Two guests have one device of the host. Both can be defined; the second that starts is"
    " refused, and the message may not say who has it.",
    remedy="give it to one of them",
    source="https://github.com/truenas/middleware/pull/13603",
)
def shared_device(s: Subject) -> Iterator[Hit]:
    owners = {
        device.key: other
        for other in s.others
        if not (s.uuid and other.uuid == s.uuid) and (other.uuid or other.name != s.name)
        for device in other.devices
    }
    for node, device in s.hostdevs:
        owner = owners.get(device.key)
        if owner is not None:
            yield Hit(node, f"host device {device.key} belongs to guest {owner.name!r} too")


@rule(
    "VG203",
    "unbound-unmanaged",
    "error",
    why="managed='no' leaves the binding to somebody else, and the device has a driver of the"
    " host now, or none. libvirt refuses to start the guest until it is bound for VFIO.",
    remedy="write managed='yes', or bind it before each start",
    source="https://github.com/kubevirt/kubevirt/issues/7371",
)
def unbound_unmanaged(s: Subject) -> Iterator[Hit]:
    for node, device, one in _known(s):
        is_left_alone = not device.managed and node.tag == "hostdev"
        if is_left_alone and one.vgpu_type is None and not one.is_on_vfio:
            yield Hit(
                node,
                f"{device.key} is not managed and has {_driver(one)}, not vfio-pci",
                remedy="write managed='yes', or bind it first: virsh nodedev-detach"
                f" pci_{str(one.address).replace(':', '_').replace('.', '_')}",
            )


def _driver(one: HostFunction) -> str:
    return "no driver" if one.driver is None else f"driver {one.driver}"


@rule(
    "VG204",
    "managed-vendor-vfio",
    "error",
    why="A VF with a vGPU stays on NVIDIA's own driver, which serves VFIO for it. managed='yes'"
    " binds it to vfio-pci, which has no vGPU behind it: the guest does not start, or the type"
    " is lost.",
    remedy="write managed='no'",
    source="https://github.com/apache/cloudstack/pull/11432;"
    " https://github.com/kubevirt/kubevirt/issues/17642",
    versions="kernels with vendor VFIO (6.8 and newer), libvirt 9.7 and newer",
)
def managed_vendor_vfio(s: Subject) -> Iterator[Hit]:
    for node, device, one in _known(s):
        if device.managed and one.pf is not None and one.vgpu_type is not None:
            yield Hit(
                node,
                f"{device.key} is a VF for vGPUs on its vendor's driver, and says managed='yes'",
                fix=lambda node=node: node.set("managed", "no"),  # type: ignore[misc]
            )


@rule(
    "VG205",
    "no-vgpu-type",
    "error",
    why="The VF has no vGPU: its type is 0. QEMU opens the device and the vendor's driver refuses.",
    remedy="set a type first: virtgpu slice create TYPE --for GUEST",
    source="https://github.com/kubevirt/kubevirt/issues/7371; NVIDIA vGPU guide, current_vgpu_type",
)
def no_vgpu_type(s: Subject) -> Iterator[Hit]:
    for node, device, one in _known(s):
        if one.vgpu_type == "0":
            yield Hit(node, f"{device.key} is a VF without a vGPU (current_vgpu_type is 0)")


@rule(
    "VG206",
    "unknown-mdev",
    "warning",
    why="The host has no mediated device of that UUID. It must be there when the guest starts;"
    " after a reboot of the host it is gone unless something makes it again.",
    remedy="make it first (virtgpu slice create, or mdevctl start), or correct the UUID",
    source="formatdomain, mdev: the device must exist when the domain starts",
)
def unknown_mdev(s: Subject) -> Iterator[Hit]:
    if s.view is None:
        return
    for node, device in s.hostdevs:
        if device.mdev is not None and device.mdev not in s.view.mdevs:
            yield Hit(node, f"there is no mediated device {device.mdev} on the host")


@rule(
    "VG207",
    "no-such-device",
    "error",
    why="The host has no PCI function at that address: the card was moved, the buses were"
    " numbered anew, or its VFs are not switched on.",
    remedy="look it up: virtgpu gpu list, or lspci -D",
    source="libvirt 9.0 virpci.c: 'Device %s not found'",
)
def no_such_device(s: Subject) -> Iterator[Hit]:
    if s.view is None or not s.view.functions:
        return
    for node, device in s.hostdevs:
        if device.pci is not None and device.pci not in s.view.functions:
            yield Hit(node, f"the host has no PCI device {device.pci}")


@rule(
    "VG208",
    "bridge",
    "error",
    why="A bridge of the host carries its other devices; VFIO takes none.",
    remedy="give the device behind it",
    source="kernel Documentation/driver-api/vfio.rst; libvirt: bridges are never assigned",
)
def bridge(s: Subject) -> Iterator[Hit]:
    for node, device, one in _known(s):
        if one.is_bridge:
            yield Hit(node, f"{device.key} is a bridge of the host")


@rule(
    "VG209",
    "management-display",
    "warning",
    why="That display belongs to the server's management controller (BMC): the remote console of"
    " the machine goes dark, and the guest gets no GPU worth the name.",
    remedy="choose a GPU: virtgpu gpu list",
    source="PCI ids: ASPEED 1a03:2000, Matrox G200e 102b:0522 to 102b:0538",
)
def management_display(s: Subject) -> Iterator[Hit]:
    for node, device, one in _known(s):
        if one.class_code.startswith("03") and one.vendor_id in (_ASPEED, _MATROX):
            yield Hit(node, f"{device.key} is the display of a management controller")


@rule(
    "VG210",
    "group-in-use",
    "error",
    why="Devices of one IOMMU group can reach each other, so the kernel gives a group to a guest"
    " only when the host uses none of it. Here a driver of the host has another device of it.",
    remedy="give the whole group, or bind the other device to vfio-pci",
    source="kernel Documentation/driver-api/vfio.rst: a group is viable when all its devices are"
    " bound to a VFIO driver or to none",
)
def group_in_use(s: Subject) -> Iterator[Hit]:
    given = {device.pci: device for _, device in s.hostdevs}
    told: set[int] = set()
    for node, device, one in _known(s):
        if one.iommu_group is None or one.iommu_group in told or s.view is None:
            continue
        in_use = [
            f"{other.address} ({other.driver})"
            for other in s.view.group(one.iommu_group)
            if other.address not in given
            and not other.is_bridge
            and other.driver is not None
            and not other.is_on_vfio
            and other.driver not in ("pci-stub", "pcieport")
        ]
        if in_use and one.vgpu_type is None:
            told.add(one.iommu_group)
            yield Hit(
                node,
                f"{device.key} shares IOMMU group {one.iommu_group} with {', '.join(in_use)} of"
                " the host",
            )


@rule(
    "VG211",
    "pf-and-vf",
    "error",
    why="The PF of a VF is given as well. When the PF leaves its driver all its VFs go away.",
    remedy="give the PF, or VFs of it, not both",
    source="kernel Documentation/PCI/pci-iov-howto.rst: VFs live as long as the PF's driver",
)
def pf_and_vf(s: Subject) -> Iterator[Hit]:
    own = {device.pci: s.name for _, device in s.hostdevs}
    others = {device.pci: other.name for other in s.others for device in other.devices}
    for node, device, one in _known(s):
        if one.pf is None:
            continue
        where = own.get(one.pf, others.get(one.pf))
        if where is not None:
            yield Hit(node, f"{device.key} is a VF of {one.pf}, which guest {where!r} has")


@rule(
    "VG212",
    "legacy-assignment",
    "error",
    why="driver name='kvm' asks for KVM's own device assignment, which kernels since 4.12 and"
    " libvirt no longer have.",
    remedy="remove <driver name='kvm'/>: VFIO is the only way",
    source="libvirt 9.0 qemu_hostdev.c: 'host doesn't support legacy PCI passthrough'",
)
def legacy_assignment(s: Subject) -> Iterator[Hit]:
    for node in s.of("hostdev"):
        driver = node.find("driver[@name='kvm']")
        if driver is not None and s.is_qemu:
            yield Hit(
                driver,
                "driver name='kvm' is the assignment that KVM no longer has",
                fix=lambda driver=driver: elements.remove(driver),  # type: ignore[misc]
            )


@rule(
    "VG213",
    "managed-not-said",
    "note",
    why="Without managed= libvirt leaves the binding to somebody else, as with managed='no'."
    " Many who leave it out expect the contrary.",
    remedy="write managed='yes', or 'no' where a tool binds the device",
    source="formatdomain, managed: 'If managed is omitted or no ...'",
)
def managed_not_said(s: Subject) -> Iterator[Hit]:
    for node, device in s.hostdevs:
        if device.pci is not None and node.tag == "hostdev" and node.get("managed") is None:
            yield Hit(node, f"{device.key} does not say whether libvirt binds it (managed)")


@rule(
    "VG214",
    "interface-no-vf",
    "error",
    why="An interface of type hostdev sets the MAC address through the PF, so it must be a VF.",
    remedy="give a VF of the card, or write it as <hostdev>",
    source="libvirt 9.0 virhostdev.c: 'Interface type hostdev is currently supported on SR-IOV"
    " Virtual Functions only'",
)
def interface_no_vf(s: Subject) -> Iterator[Hit]:
    for node, device, one in _known(s):
        if node.tag == "interface" and one.pf is None:
            yield Hit(node, f"<interface type='hostdev'> with {device.key}, which is no VF")


@rule(
    "VG215",
    "no-rom-file",
    "error",
    why="The ROM file is not there; QEMU ends when it cannot read it.",
    remedy="correct the path, or remove <rom file=.../>",
    source="formatdomain, rom file; QEMU vfio/pci.c reads it at start",
)
def no_rom_file(s: Subject) -> Iterator[Hit]:
    for node in s.of("hostdev"):
        rom = node.find("rom")
        path = None if rom is None else rom.get("file")
        if rom is not None and path and s.exists is not None and not s.exists(path):
            yield Hit(rom, f"there is no ROM file {path}")


@rule(
    "VG216",
    "rom-of-vf",
    "note",
    why="A VF has no ROM BAR of its own, so bar='on' has nothing to show.",
    remedy="remove <rom>, or give the guest a file=",
    source="PCIe Base Specification, 9.3.4.1.15: the expansion ROM BAR of a VF is not there",
)
def rom_of_vf(s: Subject) -> Iterator[Hit]:
    for node, device, one in _known(s):
        rom = node.find("rom[@bar='on']")
        if rom is not None and one.pf is not None and rom.get("file") is None:
            yield Hit(rom, f"{device.key} is a VF and has no ROM")


@rule(
    "VG217",
    "mdev-boot-order",
    "error",
    why="A mediated GPU has nothing to boot from; libvirt refuses a boot order for it.",
    remedy="remove <boot>",
    source="libvirt 9.0 qemu_validate.c: 'booting from assigned devices is not supported by"
    " mediated devices of model vfio-pci'",
)
def mdev_boot_order(s: Subject) -> Iterator[Hit]:
    for node, device in s.hostdevs:
        boot = node.find("boot")
        is_gpu = node.get("model") in (None, "vfio-pci")
        if device.mdev is not None and boot is not None and is_gpu and s.is_qemu:
            yield Hit(boot, f"mediated device {device.mdev} has a boot order")


@rule(
    "VG218",
    "mdev-model",
    "error",
    why="A mediated device must say what it is for QEMU: vfio-pci for a GPU.",
    remedy="write model='vfio-pci'",
    source="libvirt 9.0 domain_conf.c: 'Missing 'model' attribute in mediated device's <hostdev>"
    " element'",
)
def mdev_model(s: Subject) -> Iterator[Hit]:
    for node in s.of("hostdev"):
        if node.get("type") == "mdev" and not node.get("model"):
            yield Hit(node, "a mediated device without model=")


@rule(
    "VG219",
    "unreadable-source",
    "error",
    why="What names the host's device cannot be read, so that nobody can say which one it is.",
    remedy="write <source><address .../></source> with the numbers of lspci -D, or the mdev's UUID",
    source="formatdomain, Host device assignment",
)
def unreadable_source(s: Subject) -> Iterator[Hit]:
    known = {id(node) for node, _ in s.hostdevs}
    for node in s.of("hostdev"):
        if node.get("type") not in ("pci", "mdev") or id(node) in known:
            continue
        address = node.find("source/address")
        if address is None or not out_of_range(node, address):
            yield Hit(node, f"the source of a {node.get('type')} host device cannot be read")


@rule(
    "VG220",
    "unmanaged-variant",
    "error",
    why="Before 9.7 libvirt knows vfio-pci only: a device on another VFIO driver is refused when"
    " the guest starts, so there is no NVIDIA vGPU on a VF there.",
    remedy="upgrade libvirt on that host (Debian 12 has one in backports)",
    source="libvirt release notes, 9.7.0; https://libvirt.org/news.html",
    versions="libvirt before 9.7",
)
def unmanaged_variant(s: Subject) -> Iterator[Hit]:
    if s.target.libvirt is None or s.target.libvirt >= UNMANAGED_VARIANT:
        return
    for node, device, one in _known(s):
        is_variant = one.is_on_vfio and one.driver not in ("vfio-pci", None)
        if not device.managed and is_variant:
            yield Hit(node, f"{device.key} is on VFIO driver {one.driver}, which libvirt must know")
