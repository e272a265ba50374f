"""VG4xx: firmware, secure boot, TPM, boot order, and what a guest's system needs of them."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from virtgpu.domain import elements
from virtgpu.domain.lint.model import Hit, Subject, on, rule
from virtgpu.domain.topology import number

_PERSISTENT_CHOICE = 9_002_000  # firmware is chosen when the domain is defined, and written down
_SECURE_NAMES = ("secboot", "secure", ".ms.", "snakeoil")


def _loader(s: Subject) -> etree._Element | None:
    return s.root.find("os/loader") if s.is_qemu else None


def _firmware(s: Subject) -> str | None:
    node = s.root.find("os")
    return None if node is None or not s.is_qemu else node.get("firmware")


def _feature(s: Subject, name: str) -> str | None:
    node = s.root.find(f"os/firmware/feature[@name='{name}']")
    return None if node is None else node.get("enabled")


def _is_secure(s: Subject) -> bool:
    return on(_loader(s), "secure") or _feature(s, "secure-boot") == "yes"


@rule(
    "VG401",
    "secure-boot-machine",
    "error",
    why="Secure boot protects its variables with system management mode, which QEMU's q35 has and"
    " its i440fx machine (pc) has not. libvirt refuses the definition.",
    remedy="write machine='q35' and remove the devices' old addresses",
    source="https://github.com/virt-manager/virt-manager/issues/216; libvirt 9.0 qemu_validate.c,"
    " 'Secure boot is supported with q35 machine types only'",
)
def secure_boot_machine(s: Subject) -> Iterator[Hit]:
    if s.type is not None and s.is_pc and _is_secure(s):
        yield Hit(s.type, f"secure boot with machine {s.machine!r}, which is not q35")


@rule(
    "VG402",
    "secure-boot-smm",
    "error",
    why="With a loader of its own the domain must switch system management mode on itself; only"
    " firmware that libvirt chooses brings it along.",
    remedy="write <smm state='on'/> into <features>, or <os firmware='efi'> without a path",
    source="libvirt 9.0 qemu_validate.c: 'Secure boot requires SMM feature enabled'",
)
def secure_boot_smm(s: Subject) -> Iterator[Hit]:
    loader = _loader(s)
    if loader is None or not on(loader, "secure") or s.arch not in ("", "x86_64"):
        return
    smm = s.root.find("features/smm")
    is_on = smm is not None and smm.get("state", "on") == "on"
    if not is_on and (_firmware(s) is None or (smm is not None)):
        yield Hit(loader, "secure boot without <smm state='on'/>", fix=lambda: _smm_on(s.root))


def _smm_on(root: etree._Element) -> None:
    features = root.find("features")
    if features is None:
        return
    smm = features.find("smm")
    if smm is None:
        smm = etree.Element("smm")
        elements.append(features, smm)
    smm.set("state", "on")


@rule(
    "VG403",
    "secure-loader-path",
    "warning",
    why="The loader is asked to be secure, and its file's name is that of a build without secure"
    " boot. The guest then starts with secure boot off, or the pair of loader and variables does"
    " not fit.",
    remedy="write <os firmware='efi'> with the feature secure-boot, and no path: libvirt finds it",
    source="https://github.com/virt-manager/virt-manager/issues/216",
)
def secure_loader_path(s: Subject) -> Iterator[Hit]:
    loader = _loader(s)
    path = "" if loader is None else (loader.text or "").strip()
    if loader is None or not path or not on(loader, "secure"):
        return
    if not any(name in path.lower() for name in _SECURE_NAMES):
        yield Hit(loader, f"{path} does not look like a build with secure boot")


@rule(
    "VG404",
    "keys-without-secure-boot",
    "error",
    why="Enrolled keys are what secure boot checks signatures with: no firmware has them with"
    " secure boot off, so libvirt finds none or refuses.",
    remedy="write secure-boot enabled='yes', or leave enrolled-keys out",
    source="libvirt 9.0 domain_validate.c: 'firmware feature 'enrolled-keys' cannot be enabled when"
    " firmware feature 'secure-boot' is disabled'",
)
def keys_without_secure_boot(s: Subject) -> Iterator[Hit]:
    keys = s.root.find("os/firmware/feature[@name='enrolled-keys']")
    if keys is not None and keys.get("enabled") == "yes" and _feature(s, "secure-boot") == "no":
        yield Hit(keys, "enrolled-keys are asked for with secure-boot off")


@rule(
    "VG405",
    "chosen-firmware-with-path",
    "error",
    why="firmware='efi' lets libvirt choose the loader, and before 9.2 it refuses one that is"
    " written beside it. From 9.2 on it writes its choice there by itself.",
    remedy="remove the path, type, readonly and template, or the attribute firmware",
    source="libvirt 9.0 domain_validate.c: '... cannot be specified when firmware autoselection is"
    " enabled'; release notes, 9.2.0",
    versions="libvirt before 9.2",
)
def chosen_firmware_with_path(s: Subject) -> Iterator[Hit]:
    loader = _loader(s)
    if s.target.libvirt is None or s.target.libvirt >= _PERSISTENT_CHOICE or _firmware(s) is None:
        return
    if loader is not None and (
        (loader.text or "").strip() or loader.get("type") or loader.get("readonly")
    ):
        yield Hit(loader, "a loader beside firmware='efi'")
    nvram = s.root.find("os/nvram[@template]")
    if nvram is not None:
        yield Hit(nvram, "a template of variables beside firmware='efi'")


@rule(
    "VG406",
    "features-without-choice",
    "error",
    why="<firmware> says what libvirt shall look for when it chooses the firmware, and it is not"
    " asked to choose.",
    remedy="write <os firmware='efi'>",
    source="libvirt 9.0 domain_validate.c: 'cannot use feature-based firmware autoselection when"
    " firmware autoselection is disabled'",
    versions="libvirt 7.2 and newer",
)
def features_without_choice(s: Subject) -> Iterator[Hit]:
    node = s.root.find("os/firmware")
    if node is not None and s.is_qemu and _firmware(s) is None and len(node):
        yield Hit(node, "<firmware> features without firmware= at <os>")


@rule(
    "VG407",
    "loader-without-path",
    "error",
    why="A loader that libvirt does not choose must be a file.",
    remedy="write <os firmware='efi'>, or the path of the firmware",
    source="libvirt 9.0 domain_validate.c: 'no loader path specified and firmware auto selection"
    " disabled'",
)
def loader_without_path(s: Subject) -> Iterator[Hit]:
    loader = _loader(s)
    if loader is not None and _firmware(s) is None and not (loader.text or "").strip():
        yield Hit(loader, "<loader> without a path, and libvirt is not asked to choose one")


@rule(
    "VG408",
    "stateless-with-variables",
    "error",
    why="Stateless firmware keeps no variables, and the domain gives it a file for them.",
    remedy="remove <nvram>",
    source="libvirt 9.0 domain_validate.c: 'NVRAM is not permitted when loader is stateless'",
    versions="libvirt 8.6 and newer",
)
def stateless_with_variables(s: Subject) -> Iterator[Hit]:
    nvram = s.root.find("os/nvram")
    if nvram is not None and on(_loader(s), "stateless"):
        yield Hit(nvram, "<nvram> beside a stateless loader")


@rule(
    "VG409",
    "uefi-without-acpi",
    "error",
    why="On x86, UEFI tells the guest its devices through ACPI tables; libvirt refuses it without.",
    remedy="write <acpi/> into <features>",
    source="libvirt 9.0 qemu_validate.c: 'UEFI requires ACPI on this architecture'",
)
def uefi_without_acpi(s: Subject) -> Iterator[Hit]:
    is_pc = s.arch in ("x86_64", "i686")
    if s.type is None or not s.is_qemu or not is_pc or not s.is_uefi:
        return
    if s.root.find("features/acpi") is None:
        message = "UEFI firmware without <acpi/> in <features>"
        yield Hit(s.type, message, fix=lambda: _acpi_on(s.root))


def _acpi_on(root: etree._Element) -> None:
    features = root.find("features")
    if features is None:
        features = etree.Element("features")
        anchor = root.find("os")
        assert anchor is not None
        elements.insert_after(anchor, features)
    elements.append(features, etree.Element("acpi"))


@rule(
    "VG410",
    "crb-of-tpm-1.2",
    "error",
    why="The CRB interface belongs to TPM 2.0.",
    remedy="write version='2.0', or model='tpm-tis'",
    source="libvirt 9.0 qemu_validate.c: 'Unsupported interface '%s' for TPM 1.2'",
)
def crb_of_tpm_1_2(s: Subject) -> Iterator[Hit]:
    for node in s.of("tpm"):
        if node.get("model") == "tpm-crb" and node.find("backend[@version='1.2']") is not None:
            yield Hit(node, "a TPM of model tpm-crb has version 1.2")


@rule(
    "VG411",
    "tpm-1.2-for-windows-11",
    "warning",
    why="Windows 11 wants TPM 2.0: its setup ends, and upgrades are not offered.",
    remedy="write <tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>",
    source="https://learn.microsoft.com/windows/whats-new/windows-11-requirements",
)
def tpm_of_windows_11(s: Subject) -> Iterator[Hit]:
    if s.osinfo() not in ("http://microsoft.com/win/11",):
        return
    tpms = list(s.of("tpm"))
    for node in tpms:
        if node.find("backend[@version='1.2']") is not None:
            yield Hit(node, "TPM 1.2 for Windows 11")
    if not tpms and s.type is not None:
        yield Hit(s.type, "no TPM for Windows 11")


@rule(
    "VG412",
    "windows-11-firmware",
    "warning",
    why="Windows 11 wants UEFI that can secure boot.",
    remedy="write <os firmware='efi'> with the feature secure-boot enabled='yes'",
    source="https://learn.microsoft.com/windows/whats-new/windows-11-requirements",
)
def windows_11_firmware(s: Subject) -> Iterator[Hit]:
    if s.osinfo() == "http://microsoft.com/win/11" and s.type is not None and not s.is_uefi:
        yield Hit(s.type, "Windows 11 without UEFI firmware")


@rule(
    "VG413",
    "two-tpms",
    "error",
    why="A guest has one TPM (and, on pSeries, one proxy beside it).",
    remedy="remove one",
    source="libvirt 9.0 qemu_validate.c: 'only a single TPM non-proxy device is supported'",
)
def two_tpms(s: Subject) -> Iterator[Hit]:
    tpms = [node for node in s.of("tpm") if node.get("model") != "spapr-tpm-proxy"]
    if len(tpms) > 1:
        yield Hit(tpms[1], f"a second TPM (the first is on line {tpms[0].sourceline})")


@rule(
    "VG414",
    "double-boot-order",
    "error",
    why="Two devices have one place in the boot order.",
    remedy="number them from 1 on",
    source="libvirt 9.0 domain_postparse.c: 'boot order '%s' used for more than one device'",
)
def double_boot_order(s: Subject) -> Iterator[Hit]:
    seen: dict[int, etree._Element] = {}
    for device in s.devices:
        boot = device.find("boot")
        order = None if boot is None else number(boot.get("order"))
        if order is None or device.find("boot[@loadparm]") is not None:
            continue
        first = seen.setdefault(order, device)
        if first is not device:
            yield Hit(
                device,
                f"boot order {order} is that of <{first.tag!s}> on line {first.sourceline} too",
            )


@rule(
    "VG415",
    "two-boot-orders",
    "error",
    why="The boot order is given by kind (in <os>) and by device at once; libvirt refuses both.",
    remedy="remove <boot dev=.../> from <os>",
    source="libvirt 9.0 domain_postparse.c: 'per-device boot elements cannot be used together with"
    " os/boot elements'",
)
def two_boot_orders(s: Subject) -> Iterator[Hit]:
    boot = s.root.find("os/boot")
    ordered = [d for d in s.devices if d.find("boot[@order]") is not None]
    if boot is not None and ordered:
        yield Hit(
            boot,
            f"<boot dev=.../> in <os>, and an order at a device (line {ordered[0].sourceline})",
        )


@rule(
    "VG416",
    "windows-without-hyperv",
    "warning",
    why="Windows without Hyper-V's enlightenments reads timers and interrupts through exits to"
    " QEMU; with a vGPU the picture stutters and CPUs are lost.",
    remedy="write <hyperv mode='passthrough'/>, or at least relaxed, vapic and spinlocks",
    source="QEMU docs/system/i386/hyperv.rst; formatdomain, hyperv",
)
def windows_without_hyperv(s: Subject) -> Iterator[Hit]:
    if s.is_windows and s.passed and s.type is not None and s.root.find("features/hyperv") is None:
        yield Hit(s.type, "a Windows guest with a GPU and without <hyperv> features")


@rule(
    "VG417",
    "windows-clock",
    "note",
    why="Windows reads time from the hypervisor's reference page when it is there; without it each"
    " look at the clock leaves the guest, and display drivers look often.",
    remedy="write <timer name='hypervclock' present='yes'/> into <clock>",
    source="QEMU docs/system/i386/hyperv.rst, hv-time",
)
def windows_clock(s: Subject) -> Iterator[Hit]:
    has_clock = s.root.find("clock/timer[@name='hypervclock'][@present='yes']") is not None
    if s.is_windows and s.passed and s.type is not None and not has_clock:
        yield Hit(s.type, "a Windows guest with a GPU and without the hypervclock timer")


@rule(
    "VG418",
    "no-firmware-file",
    "error",
    why="The firmware's file is not there; QEMU ends when it cannot read it.",
    remedy="write <os firmware='efi'> without a path: libvirt finds what is installed",
    source="formatdomain, loader; measured: QEMU 7.2 'could not load PC BIOS'",
)
def no_firmware_file(s: Subject) -> Iterator[Hit]:
    loader = _loader(s)
    path = "" if loader is None else (loader.text or "").strip()
    if loader is None or not path.startswith("/") or s.exists is None:
        return
    if not s.exists(path):
        yield Hit(loader, f"there is no firmware {path}")
