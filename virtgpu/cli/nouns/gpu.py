"""`virtgpu gpu`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from virtgpu.cli.output import Table, cell, gib, show
from virtgpu.cli.world import World, verb
from virtgpu.model.details import Bar, Details
from virtgpu.model.gpu import Gpu
from virtgpu.model.pci_class import words
from virtgpu.policy.taken import holders_text

HEADINGS = ("ADDRESS", "NAME", "DRIVER", "NODE", "GROUP", "WAYS", "MEMORY", "LEFT", "VFS", "NOTE")


@click.group(name="gpu")
def command() -> None:
    """Physical GPUs and what they can do."""


@verb(command, name="list", example="virtgpu gpu list")
def gpu_list(world: World) -> None:
    """List the GPUs of the host."""
    host = world.handle().read()
    table = Table(HEADINGS, [gpu_row(gpu) for gpu in host.gpus], "no GPU that a guest could have")
    show(world, {"gpus": host.gpus, "platform_gpus": host.platform_gpus}, table)
    if world.format == "table":
        for one in host.platform_gpus:
            click.echo(f"{one.name}: {one.reason}", err=True)


@verb(command, name="show", example="virtgpu gpu show 0000:51:00.0")
@click.argument("address")
def gpu_show(world: World, address: str) -> None:
    """Show one GPU, by its address in any spelling."""
    handle = world.handle()
    gpu = handle.gpu(address)
    details = handle.details(gpu)
    text = "\n".join((*_lines(gpu), *_detail_lines(details)))
    show(world, {"gpu": gpu, "details": details}, text)


def gpu_row(gpu: Gpu) -> tuple[object, ...]:
    """One line of the list."""
    total = gpu.sriov.total_vfs if gpu.sriov is not None and gpu.sriov.usable else None
    vfs = f"{len(gpu.vfs)}/{total}" if total else None
    return (
        gpu.address,
        gpu.name or f"{gpu.vendor_id}:{gpu.device_id}",
        gpu.driver,
        gpu.numa_node,
        gpu.iommu_group,
        tuple(one.value for one in gpu.mechanisms),
        gib(gpu.framebuffer_mib),
        gib(gpu.framebuffer_left_mib),
        vfs,
        _note(gpu),
    )


def _note(gpu: Gpu) -> str:
    notes = []
    if gpu.blocked:
        notes.append(gpu.blocked)
    if gpu.whole_only:
        notes.append("whole only")
    if gpu.missing:
        notes.append(f"{gpu.missing.reason}: {gpu.missing.command}")
    if gpu.boot_console:
        notes.append("host console")
    if gpu.mig is not None and (gpu.mig.current or gpu.mig.pending):
        notes.append("MIG on" if gpu.mig.current else "MIG pending")
    if gpu.mixed_size:
        notes.append("mixed-size")
    if gpu.group_others:
        notes.append(f"shares its group with {cell(gpu.group_others)}")
    return "; ".join(notes)


def _lines(gpu: Gpu) -> Iterator[str]:
    facts = {
        "address": gpu.address,
        "name": gpu.name,
        "vendor": f"{gpu.vendor} ({gpu.vendor_id}:{gpu.device_id})",
        "class": gpu.class_code,
        "driver": gpu.driver,
        "memory node": gpu.numa_node,
        "IOMMU group": gpu.iommu_group,
        "functions": tuple(f"{one.address} ({cell(one.driver)})" for one in gpu.functions),
        "also in the group": tuple(
            f"{one.address} ({words(one.class_code)}, {cell(one.driver)})" for one in gpu.strangers
        ),
        "ways to give it": tuple(one.value for one in gpu.mechanisms),
        "blocked": gpu.blocked,
        "whole only, because": gpu.whole_only,
        "missing": None if gpu.missing is None else gpu.missing.reason,
        "command for it": None if gpu.missing is None else gpu.missing.command,
        "frame buffer": gib(gpu.framebuffer_mib),
        "frame buffer left": gib(gpu.framebuffer_left_mib),
        "VFs": None if gpu.sriov is None else f"{len(gpu.vfs)} of {gpu.sriov.total_vfs}",
        "VFs turned on by": gpu.enable_vfs,
        "mixed-size mode": gpu.mixed_size,
        "MIG": _mig(gpu),
        "NVML": None if gpu.nvml is None else f"index {gpu.nvml.index}, {cell(gpu.nvml.uuid)}",
        "holders": _holders(gpu),
    }
    for name, value in facts.items():
        yield f"{name:20} {cell(value)}"
    for text in gpu.warnings:
        yield f"{'warning':20} {text}"


def _detail_lines(details: Details) -> Iterator[str]:
    facts = {
        "BARs": None if details.bars is None else tuple(map(_bar, details.bars)),
        "link now": _link(details.link_speed, details.link_width),
        "link at most": _link(details.max_link_speed, details.max_link_width),
        "reset methods": "none" if details.reset_methods == () else details.reset_methods,
        "serial number": _masked(details.serial),
    }
    for name, value in facts.items():
        yield f"{name:20} {cell(value)}"


def _bar(bar: Bar) -> str:
    size, unit = bar.size_bytes / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{bar.index}: {size:g} {unit}{' prefetchable' if bar.prefetchable else ''}"


def _link(speed: str | None, width: int | None) -> str | None:
    return None if speed is None and width is None else f"{cell(speed)} x{cell(width)}"


def _masked(serial: str | None) -> str | None:
    """A serial number as it may be shown around: its last four characters."""
    return None if serial is None else "*" * len(serial[:-4]) + serial[-4:]


def _mig(gpu: Gpu) -> str | None:
    if gpu.mig is None:
        return None
    words = {True: "on", False: "off"}
    text = f"{words[gpu.mig.current]}, pending {words[gpu.mig.pending]}"
    names = {one.id: one.name for one in gpu.mig.profiles}
    made = [
        f"{names.get(one.profile_id, one.profile_id)} at {one.start}" for one in gpu.mig.instances
    ]
    return f"{text}; {', '.join(made)}" if made else text


def _holders(gpu: Gpu) -> str:
    if gpu.holders is None:
        return "unknown (not every process can be looked into)"
    return holders_text(gpu.holders) or cell(())
