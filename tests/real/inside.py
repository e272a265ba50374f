"""Runs on the mounted simulated machine: python -m tests.real.inside PROFILE > results as JSON."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import libvirt
from lxml import etree

from tests.real.cells import CELLS
from virtgpu.api import GuestShape, HostHandle, connect
from virtgpu.domain.lint import lint
from virtgpu.errors import Unsupported
from virtgpu.host.libvirt_domains import define
from virtgpu.model.pci import PciAddress
from virtgpu.model.slice import SliceState

URI = "qemu:///system"
SHAPE = GuestShape(memory_mib=128, vcpus=1)


def snapshot() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("/sys/kernel/virtgpu_sim/snapshot").read_text())
    return {key: value for key, value in found.items() if value}


def until(question: Callable[[], Any], seconds: float = 20) -> Any:
    """libvirt hears of a device a moment later, as on a real host."""
    deadline = time.monotonic() + seconds
    while True:
        answer = question()
        if answer or time.monotonic() > deadline:
            return answer
        time.sleep(0.05)


def nodedev(connection: Any, name: str) -> etree._Element | None:
    try:
        return etree.fromstring(connection.nodeDeviceLookupByName(name).XMLDesc())
    except libvirt.libvirtError:
        return None


def pci_name(address: str) -> str:
    return "pci_" + address.replace(":", "_").replace(".", "_")


def address_of(node: etree._Element) -> str:
    numbers = [int(node.get(key) or "0", 0) for key in ("domain", "bus", "slot", "function")]
    return str(PciAddress.of(tuple(numbers)))  # type: ignore[arg-type]


# -- our inventory and libvirt's


def agreement(connection: Any, host: HostHandle) -> list[str]:
    """Every difference between our inventory and libvirt's own nodedev."""
    wrong: list[str] = []
    for gpu in host.read().gpus:
        for one in gpu.functions:
            facts = nodedev(connection, pci_name(one.address))
            if facts is None:
                wrong.append(f"{one.address}: libvirt does not know it")
                continue
            same(wrong, one.address, "group", facts.find(".//iommuGroup"), one.iommu_group)
            product = facts.find("capability/product")
            if product is None or int(product.get("id") or "0", 16) != int(one.device_id, 16):
                wrong.append(f"{one.address}: device id differs")
            if (facts.findtext("driver/name")) != one.driver:
                wrong.append(f"{one.address}: driver {facts.findtext('driver/name')}")
        wrong += of_gpu(connection, gpu)
    return wrong


def same(wrong: list[str], where: str, what: str, node: Any, ours: Any) -> None:
    theirs = None if node is None else int(node.get("number"))
    if theirs != ours:
        wrong.append(f"{where}: {what} {theirs} of libvirt, {ours} of ours")


def of_gpu(connection: Any, gpu: Any) -> Iterator[str]:
    facts = nodedev(connection, pci_name(gpu.address))
    if facts is None:
        return
    numa = facts.find(".//numa")
    if (None if numa is None else int(numa.get("node") or "-1")) != gpu.numa_node:
        yield f"{gpu.address}: memory node differs"
    theirs = [
        address_of(one) for one in facts.findall(".//capability[@type='virt_functions']/address")
    ]
    if theirs != [str(vf.address) for vf in gpu.vfs]:
        yield f"{gpu.address}: {len(theirs)} VFs of libvirt, {len(gpu.vfs)} of ours"
    for vf in gpu.vfs:
        found = nodedev(connection, pci_name(vf.address))
        group = None if found is None else found.find(".//iommuGroup")
        if group is None or int(group.get("number") or "-1") != vf.iommu_group:
            yield f"{vf.address}: group differs"
    parents = [gpu.address] if gpu.mdevs or not gpu.vfs else [vf.address for vf in gpu.vfs]
    ours = {one.type.id for one in gpu.offers if one.type.mechanism.value.startswith("mdev")}
    for parent in parents:
        found = nodedev(connection, pci_name(parent))
        kinds = [] if found is None else found.findall(".//capability[@type='mdev_types']/type")
        if {one.get("id") for one in kinds} != ours:
            yield f"{parent}: mdev types differ"


# -- guests


@contextmanager
def noted(results: list[dict[str, Any]], **cell: Any) -> Iterator[dict[str, Any]]:
    try:
        yield cell
    except Exception as error:
        cell["error"] = f"{type(error).__name__}: {error}"
        cell["trace"] = traceback.format_exc()
    results.append(cell)


def guest(connection: Any, host: HostHandle, request: str, cell: dict[str, Any]) -> None:
    """Define, start, look, stop and take back one guest."""
    before = snapshot()
    name = "cell"
    try:
        made = host.define(name, [request], SHAPE)
    except Unsupported as error:
        cell["outcome"] = "refused"
        cell["reason"] = error.message
        assert snapshot() == before, "a refusal changed something"
        return
    xml = host.guest_xml(name)
    report = lint(xml)
    assert report.schema, "libvirt's schema is not installed"
    assert report.is_clean, report.findings
    domain = connection.lookupByName(name)
    domain.create()
    try:
        look(connection, host, name, made.uuid)
    finally:
        domain.destroy()
    twin(connection, xml, cell)
    host.undefine(name)
    left = [one for one in host.slices() if one.state is not SliceState.FOREIGN]
    assert not left, left
    back_to(host, before)
    cell["outcome"] = "started"


def clear(connection: Any, host: HostHandle) -> None:
    """After a cell that failed: the next one begins anew."""
    for domain in connection.listAllDomains():
        if domain.isActive():
            domain.destroy()
        host.undefine(domain.name())


def look(connection: Any, host: HostHandle, name: str, uuid: str) -> None:
    """While it runs: nodedev, driver, holder and the live XML say the same."""
    known = host.guest(name)
    assert known.is_active
    assert known.live is not None
    assert {one.slice_id for one in known.live.devices} == {
        one.slice_id for one in known.definition.devices
    }
    slices = {one.id: one for one in host.slices() if one.domain_uuid == uuid}
    assert slices
    for device in known.live.devices:
        if device.pci is not None:
            facts = until(lambda d=device: nodedev(connection, pci_name(str(d.pci))))
            wanted = "vfio-pci" if device.managed else "nvidia"
            assert until(lambda d=device, w=wanted: driver_of(connection, str(d.pci)) == w), (
                f"{device.pci} has driver {driver_of(connection, str(device.pci))}"
            )
            assert facts is not None
        else:
            uuid_text = str(device.mdev).replace("-", "_")
            assert until(
                lambda u=uuid_text: any(u in one for one in connection.listDevices("mdev"))
            )
    for one in slices.values():
        assert one.holders, f"nobody is seen to hold {one.id}"


def driver_of(connection: Any, address: str) -> str | None:
    path = Path(f"/sys/bus/pci/devices/{address}/driver")
    return path.readlink().name if path.is_symlink() else None


def twin(connection: Any, xml: str, cell: dict[str, Any]) -> None:
    """The same guest with its device's address off by one does not start."""
    root = etree.fromstring(xml)
    source = root.find(".//hostdev/source/address")
    if source.get("uuid"):
        last = source.get("uuid")[-1]
        source.set("uuid", source.get("uuid")[:-1] + ("0" if last != "0" else "1"))
    else:
        for node in root.findall(".//hostdev/source/address"):
            node.set("slot", f"0x{int(node.get('slot'), 16) + 1:02x}")
    for tag in ("uuid", "metadata"):
        node = root.find(tag)
        if node is not None:
            root.remove(node)
    root.find("name").text = "twin"
    define(connection, etree.tostring(root).decode())
    domain = connection.lookupByName("twin")
    try:
        domain.create()
    except libvirt.libvirtError as error:
        cell["twin"] = error.get_error_message()
    else:
        domain.destroy()
    domain.undefine()


def back_to(host: HostHandle, before: dict[str, Any]) -> None:
    """What a card shares stays on after the last slice; here it goes, to compare all the rest."""
    now = snapshot()
    for address, count in (now.get("numvfs") or {}).items():
        if count and not before["numvfs"].get(address):
            if Path(f"/sys/bus/pci/devices/{address}/driver").readlink().name == "nvidia":
                tool = host.door.which("sriov-manage")
                host.door.run([str(tool), "-d", address], timeout_s=30)
            else:
                host.door.write(f"sys/bus/pci/devices/{address}/sriov_numvfs", "0")
    for address, mode in (now.get("mig") or {}).items():
        if mode["current"] and not before["mig"][address]["current"]:
            host.door.run(["nvidia-smi", "-i", address, "-mig", "0"], timeout_s=30)
    now = snapshot()
    different = {
        key: (before.get(key), now.get(key))
        for key in before | now
        if before.get(key) != now.get(key)
    }
    assert not different, different


def nodedev_round(connection: Any, host: HostHandle) -> list[str]:
    """libvirt's own create, detach, reattach and destroy on this machine."""
    done = []
    for gpu in host.read().gpus:
        if "whole-card" in [one.value for one in gpu.mechanisms] and not gpu.boot_console:
            device = connection.nodeDeviceLookupByName(pci_name(gpu.address))
            before = driver_of(connection, gpu.address)
            device.dettach()
            assert driver_of(connection, gpu.address) == "vfio-pci"
            device.reAttach()
            assert driver_of(connection, gpu.address) == before
            done.append(f"detach {gpu.address}")
            break
    for gpu in host.read().gpus:
        offers = [
            one
            for one in gpu.offers
            if one.available and one.type.mechanism.value.startswith("mdev")
        ]
        if offers:
            parent = offers[0].vfs[0] if offers[0].vfs else gpu.address
            xml = (
                f"<device><parent>{pci_name(parent)}</parent><capability type='mdev'>"
                f"<type id='{offers[0].type.id}'/></capability></device>"
            )
            made = connection.nodeDeviceCreateXML(xml)
            assert any(one.state is SliceState.FOREIGN for one in host.slices())
            made.destroy()
            done.append(f"create {parent}")
            break
    return done


def main(profile: str) -> None:
    libvirt.registerErrorHandler(lambda *_: None, None)
    connection = libvirt.open(URI)
    host = connect("local", connect_uri=URI)
    results: list[dict[str, Any]] = []
    with noted(results, cell="inventory") as cell:
        wanted = sum(len(gpu.functions) + len(gpu.vfs) for gpu in host.read().gpus)
        until(lambda: len(connection.listDevices("pci")) >= wanted)
        cell["different"] = until(lambda: not agreement(connection, host)) or agreement(
            connection, host
        )
        cell["different"] = [] if cell["different"] is True else cell["different"]
    with noted(results, cell="nodedev") as cell:
        before = snapshot()
        cell["done"] = nodedev_round(connection, host)
        back_to(host, before)
    for request in CELLS[profile]:
        with noted(results, cell=request) as cell:
            guest(connection, host, request, cell)
        clear(connection, host)
    version = connection.getLibVersion()
    print(json.dumps({"libvirt": version, "results": results}))


if __name__ == "__main__":
    main(sys.argv[1])
    sys.exit(0)
