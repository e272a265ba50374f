"""VG7xx: what the target libvirt or QEMU does not know yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from virtgpu.domain.lint.model import Hit, Subject, rule
from virtgpu.domain.target import version_text


class Feature(NamedTuple):
    """An element or attribute (an XPath of lxml's find) and the first version that has it."""

    path: str
    what: str
    libvirt: int = 0
    qemu: int = 0


_V = 1_000_000


def _v(major: int, minor: int = 0) -> int:
    return major * _V + minor * 1_000


# formatdomain ("Since ...") and the release notes, https://libvirt.org/news.html; QEMU's first
# release with the device, where libvirt needs it.
FEATURES = (
    Feature("devices/hostdev[@type='mdev']", "mediated devices", _v(3, 2)),
    Feature(
        "devices/hostdev[@type='mdev'][@display]", "the display of a vGPU", _v(4, 6), _v(2, 12)
    ),
    Feature("devices/hostdev[@type='mdev'][@ramfb]", "ramfb of a vGPU", _v(5, 10)),
    Feature("devices/hostdev[@type='pci'][@display]", "display of a PCI host device", _v(10, 3)),
    Feature("devices/hostdev[@type='pci'][@ramfb]", "ramfb of a PCI host device", _v(10, 3)),
    Feature("devices/hostdev/driver[@model]", "the driver model of a host device", _v(10)),
    Feature("devices/interface/driver[@model]", "the driver model of a host device", _v(10)),
    Feature("devices/hostdev/acpi[@nodeset]", "NUMA nodes of a host device", _v(11, 8)),
    Feature("devices/hostdev/driver[@iommufd]", "iommufd of a host device", _v(12, 1), _v(9)),
    Feature("iommufd", "iommufd for all host devices", _v(12, 2), _v(9)),
    Feature("devices/hostdev/teaming", "teaming of a host device", _v(7, 1)),
    Feature("os[@firmware]", "firmware that libvirt chooses", _v(5, 2)),
    Feature("os/firmware/feature", "features of firmware", _v(7, 2)),
    Feature("os/loader[@stateless]", "stateless firmware", _v(8, 6)),
    Feature("os/loader[@format]", "the format of a loader", _v(9, 2)),
    Feature("os/nvram[@templateFormat]", "the format of a template of variables", _v(10, 10)),
    Feature("os/varstore", "a store for UEFI variables", _v(12, 1)),
    Feature("devices/tpm/backend[@type='emulator']", "an emulated TPM", _v(4, 5)),
    Feature("devices/tpm/backend[@type='external']", "an external TPM emulator", _v(9)),
    Feature("devices/tpm/backend[@persistent_state]", "persistent state of a TPM", _v(7)),
    Feature("devices/tpm/backend[@debug]", "the log level of a TPM", _v(10, 6)),
    Feature("devices/tpm/backend/source", "the place of a TPM's state", _v(9)),
    Feature("devices/tpm/backend/active_pcr_banks", "PCR banks of a TPM", _v(7, 10)),
    Feature("devices/disk[@type='nvme']", "an NVMe disk of the host", _v(6)),
    Feature("devices/disk/target[@bus='nvme']", "an emulated NVMe disk", _v(11, 5)),
    Feature("launchSecurity[@type='sev']", "SEV", _v(4, 4)),
    Feature("launchSecurity[@type='sev-snp']", "SEV-SNP", _v(10, 5), _v(9, 1)),
    Feature("launchSecurity[@type='tdx']", "TDX", _v(11, 6), _v(10, 1)),
    Feature("launchSecurity[@kernelHashes]", "kernel hashes of SEV", _v(8)),
    Feature("cpu/maxphysaddr", "the guest's address bits", _v(8, 7)),
    Feature("devices/iommu[@model='intel']", "an Intel IOMMU", _v(2, 1)),
    Feature("devices/iommu[@model='smmuv3']", "an SMMUv3", _v(5, 5)),
    Feature("devices/iommu[@model='virtio']", "a virtio IOMMU", _v(8, 3)),
    Feature("devices/iommu[@model='amd']", "an AMD IOMMU", _v(11, 5)),
    Feature("devices/memballoon[@freePageReporting]", "free page reporting", _v(6, 9)),
    Feature("memoryBacking/hugepages/page", "sizes of huge pages", _v(1, 2)),
    Feature("devices/hostdev/rom[@enabled]", "switching a ROM off", _v(4, 3)),
)


@rule(
    "VG701",
    "newer-than-libvirt",
    "error",
    why="The target's libvirt does not know this element or attribute. It leaves out what it does"
    " not know, without a word, or refuses it when the XML is validated.",
    remedy="upgrade libvirt on that host, or leave it out",
    source="formatdomain ('Since ...') and https://libvirt.org/news.html",
    versions="the libvirt of the target, when it is known",
)
def newer_than_libvirt(s: Subject) -> Iterator[Hit]:
    return _newer(s, "libvirt", s.target.libvirt, lambda feature: feature.libvirt)


@rule(
    "VG702",
    "newer-than-qemu",
    "error",
    why="libvirt knows the element, and the target's QEMU has no such device: the definition or"
    " the start is refused.",
    remedy="upgrade QEMU on that host, or leave it out",
    source="libvirt's QEMU capabilities by version (tests/qemucapabilitiesdata)",
    versions="the QEMU of the target, when it is known",
)
def newer_than_qemu(s: Subject) -> Iterator[Hit]:
    return _newer(s, "QEMU", s.target.qemu, lambda feature: feature.qemu)


def _newer(
    s: Subject, program: str, has: int | None, needs: Callable[[Feature], int]
) -> Iterator[Hit]:
    """Every use of a feature that came after the version that the target has."""
    if has is None:
        return
    for feature in FEATURES:
        if needs(feature) <= has:
            continue
        first = version_text(needs(feature)).removesuffix(".0")
        for node in s.root.findall(feature.path):
            yield Hit(
                node,
                f"{feature.what} needs {program} {first}; the target has {version_text(has)}",
            )
