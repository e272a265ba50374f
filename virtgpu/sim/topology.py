"""The bridges above the functions: those of the profile, PCIe switches, and made-up root ports."""

from __future__ import annotations

from collections.abc import Callable

from virtgpu.sim.bus import Bus
from virtgpu.sim.device import Device, config_space, parts, vf_address
from virtgpu.sim.profiles import Json
from virtgpu.sim.tree import Node, Tree

_PORT = {"vendor": "8086", "device": "352a", "class": "060400", "revision": "00"}
_SWITCH = {"vendor": "1000", "device": "c010", "class": "060400", "revision": "b0"}


class Topology:
    """Finds or makes the node that a function hangs below."""

    def __init__(self, tree: Tree, bus: Bus, specs: list[Json]) -> None:
        self._tree = tree
        self._bus = bus
        self._specs = {spec["address"]: spec for spec in specs}
        self._ports: dict[tuple[str, int], Node] = {}
        self._switches: dict[str, Node] = {}
        self._next_slot: dict[str, int] = {}
        self.taken = set(self._specs)
        self.add: Callable[[Json], Device] = lambda _: (_ for _ in ()).throw(KeyError())

    def parent(self, spec: Json) -> Node:
        """Bus 0 hangs on the host bridge; a named bridge, a switch, or a root port of its own."""
        domain, bus, _ = parts(spec["address"])
        above = spec.get("parent")
        if above is not None and above != spec["address"]:
            if above in self._bus.devices:
                return self._bus.devices[above].node
            known = self._specs.get(above)
            return self.add(known).node if known else self._port(domain, bus, spec, above)
        if spec.get("switch"):
            return self._downstream(domain, bus, spec)
        if bus == 0:
            return self._host_bridge(domain)
        return self._port(domain, bus, spec, None)

    def _host_bridge(self, domain: str) -> Node:
        return self._tree.dir(f"sys/devices/pci{domain}:00")

    def _port(self, domain: str, bus: int, spec: Json, address: str | None) -> Node:
        key = (domain, bus)
        if key not in self._ports:
            named = address or self._free_address(domain)
            self._ports[key] = self._bridge(named, self._host_bridge(domain), spec, _PORT, bus)
        return self._ports[key]

    def _downstream(self, domain: str, bus: int, spec: Json) -> Node:
        """Root port, upstream port of the switch, and a downstream port for each bus below it."""
        name = str(spec["switch"])
        if name not in self._switches:
            root = self._bridge(
                self._free_address(domain), self._host_bridge(domain), spec, _PORT, bus
            )
            upstream = self._free_address(domain)
            self._switches[name] = self._bridge(upstream, root, spec, _SWITCH, bus)
        key = (domain, bus)
        if key not in self._ports:
            port = self._free_address(domain)
            self._ports[key] = self._bridge(port, self._switches[name], spec, _SWITCH, bus)
        return self._ports[key]

    def _bridge(self, address: str, above: Node, spec: Json, ids: Json, bus: int) -> Node:
        facts = ids | {"address": address, "numa_node": spec.get("numa_node")}
        port = Device(address=address, spec=facts, group=None, home="pcieport")
        port.config = config_space(port, is_multi=False, bridge=(bus, last_bus(spec)))
        self.taken.add(address)
        self._bus.add(port, above)
        self._bus.bind(port, "pcieport")
        return port.node

    def _free_address(self, domain: str) -> str:
        slot = self._next_slot.get(domain, 0x80)
        while True:
            address = f"{domain}:00:{slot >> 3:02x}.{slot & 7}"
            slot += 1
            if address not in self.taken:
                self._next_slot[domain] = slot
                return address


def last_bus(spec: Json) -> int:
    """The last bus number that the function's VFs reach."""
    bus = parts(spec["address"])[1]
    if not spec.get("sriov"):
        return bus
    pf = Device(address=spec["address"], spec=spec, group=None, home=None)
    return parts(vf_address(pf, max(0, int(spec["sriov"]["totalvfs"]) - 1)))[1]
