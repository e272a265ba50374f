"""`virtgpu host`."""

from __future__ import annotations

import click

from virtgpu.cli.nouns.gpu import HEADINGS, gpu_row
from virtgpu.cli.output import Table, cell, show
from virtgpu.cli.streams import put
from virtgpu.cli.world import World, verb
from virtgpu.model.gpu import Host


@click.group(name="host")
def command() -> None:
    """This host: kernel, IOMMU, memory nodes, GPUs."""


@verb(command, name="show", example="virtgpu host show -o json")
def host_show(world: World) -> None:
    """Show the whole host as it is now."""
    host = world.handle().read()
    if world.format != "table":
        show(world, {"host": host}, "")
        return
    show(world, {}, _facts(host))
    if host.gpus:
        put("")
        show(world, {}, Table(HEADINGS, [gpu_row(gpu) for gpu in host.gpus]))


def _facts(host: Host) -> str:
    lines = [
        f"host             {host.label}",
        f"kernel           {cell(host.kernel)} ({cell(host.arch)})",
        f"IOMMU            {'on' if host.iommu else 'unknown' if host.iommu is None else 'off'}",
        f"NVIDIA driver    {cell(host.nvidia_driver)}",
    ]
    for node in host.numa:
        memory = "-" if node.memory_mib is None else f"{node.memory_mib // 1024} GiB"
        lines.append(f"memory node {node.id}    {memory}, CPUs {cell(node.cpulist)}")
    for nic in host.nics:
        if nic.pf is None:
            where = cell(nic.numa_node)
            lines.append(f"NIC              {nic.address} ({cell(nic.driver)}), node {where}")
    lines += [f"no guest's       {one.name}: {one.reason}" for one in host.platform_gpus]
    lines += [f"warning          {text}" for text in host.warnings]
    return "\n".join(lines)
