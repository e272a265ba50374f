"""Making slices: the steps in the order that the hardware wants them.

On one GPU: MIG mode on, VFs on, GPU instance, vGPU. The reservation comes before any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from virtgpu.model import steps
from virtgpu.model.binding import bind
from virtgpu.model.gpu import Gpu, Host, Mechanism, Vf
from virtgpu.model.pci import PciAddress
from virtgpu.model.plan import Fact, Plan
from virtgpu.model.request import Request
from virtgpu.model.slice import Place, Reservation
from virtgpu.model.steps import Step
from virtgpu.plan.facts import facts_for, merged
from virtgpu.policy.choice import choose
from virtgpu.policy.ledger import VFIO_PCI, claimed, join, vf_of
from virtgpu.policy.options import Option

NewId = Callable[[], str]


def plan_create(
    host: Host,
    request: Request,
    reservations: Sequence[Reservation],
    *,
    guest: str | None,
    ids: NewId,
    created: str,
    apply_id: str,
    domain_uuid: str | None = None,
    domain_uri: str | None = None,
    stuck: Sequence[str] = (),
    defined: Mapping[PciAddress, str] | None = None,
) -> Plan:
    """The plan that reserves and makes what *request* asks for.

    *ids* gives a fresh UUID at each call, *created* is RFC 3339. *defined* are PCI functions that
    definitions give to guests, with their names. Raises what `choose` raises.
    """
    slices = join(host, reservations, stuck)
    slices += claimed(host, slices, defined or {})
    options = choose(host, request, slices, guest=guest, stuck=stuck)
    reserved: list[Step] = []
    done: list[Step] = []
    facts: list[Fact] = []
    others = [one for one in reservations if one.apply_id != apply_id]
    prepared: set[tuple[str, str]] = set()
    for option in _enough_vfs(options):
        gpu = host.gpu(option.place.gpu)
        assert gpu is not None
        reservation = _reservation(
            host, option, request, ids(), guest, (domain_uuid, domain_uri), created, apply_id
        )
        facts += facts_for(host, option.place, option.prepare, reservation.id, others)
        reserved.append(steps.Reserve(reservation=reservation))
        done += _preparations(gpu, option, prepared)
        done += _making(gpu, reservation.place)
    return Plan(
        id=apply_id,
        host=host.label,
        created=created,
        goal="make",
        summary=f"make {request}" + (f" for {guest}" if guest else ""),
        why=tuple(option.why for option in options),
        facts=merged(facts),
        steps=(*reserved, *done),
    )


def _enough_vfs(options: Sequence[Option]) -> tuple[Option, ...]:
    """The first of a card's options turns on as many VFs as the last one needs: the kernel takes
    a number once."""
    most: dict[str, int] = {}
    for one in options:
        most[one.place.gpu] = max(one.prepare.vfs, most.get(one.place.gpu, 0))
    return tuple(
        msgspec.structs.replace(
            one, prepare=msgspec.structs.replace(one.prepare, vfs=most[one.place.gpu])
        )
        for one in options
    )


def _reservation(
    host: Host,
    option: Option,
    request: Request,
    slice_id: str,
    guest: str | None,
    domain: tuple[str | None, str | None],
    created: str,
    apply_id: str,
) -> Reservation:
    place = option.place
    if _is_mdev(place):
        place = msgspec.structs.replace(place, mdev=slice_id)
    if place.mechanism is Mechanism.VF:
        gpu = host.gpu(place.gpu)
        vf = vf_of(gpu, place.vf) if gpu is not None else None
        driver = vf.driver if vf is not None else None
        place = msgspec.structs.replace(place, previous_drivers=(driver,))
    return Reservation(
        id=slice_id,
        request=str(request),
        place=place,
        created=created,
        apply_id=apply_id,
        guest=guest,
        domain_uuid=domain[0],
        domain_uri=domain[1],
    )


def _is_mdev(place: Place) -> bool:
    """Whether the slice will be a mediated device: a MIG-backed vGPU is what its card makes."""
    if place.mechanism in (Mechanism.MDEV_PF, Mechanism.MDEV_VF):
        return True
    # mdev types are called DRIVER-NUMBER, those of the vendor's framework NUMBER.
    return place.mechanism is Mechanism.MIG and "-" in (place.type_id or "")


def _preparations(gpu: Gpu, option: Option, prepared: set[tuple[str, str]]) -> list[Step]:
    prepare, address = option.prepare, gpu.address
    tool: Literal["sriov-manage", "sriov_numvfs"] = (
        "sriov-manage" if gpu.enable_vfs == "sriov-manage" else "sriov_numvfs"
    )
    found: list[Step] = []
    wipes = prepare.mig or (prepare.vfs and tool == "sriov-manage")
    if wipes and _first(prepared, address, "mixed size"):
        found += _mixed_off(gpu)
    if prepare.mig and _first(prepared, address, "mig"):
        found.append(steps.SetMigMode(address=address, enabled=True, previous=False))
    if prepare.vfs and _first(prepared, address, "vfs"):
        found.append(
            steps.SetVfs(
                address=address,
                count=prepare.vfs,
                previous=len(gpu.vfs),
                tool=tool,
                driver=gpu.driver,
            )
        )
    if prepare.gi is not None and option.place.gi_start is not None:
        found.append(
            steps.CreateGpuInstance(
                address=address,
                profile_id=prepare.gi.id,
                profile=prepare.gi.name,
                start=option.place.gi_start,
                size=prepare.gi.size,
            )
        )
    return found


def _mixed_off(gpu: Gpu) -> list[Step]:
    """Mixed-size mode goes with the driver's binding and with MIG: as a step of its own it is seen,
    and comes back when the plan is undone."""
    if not gpu.mixed_size:
        return []
    return [steps.SetMixedSize(address=gpu.address, enabled=False, previous=True)]


def _first(prepared: set[tuple[str, str]], address: str, what: str) -> bool:
    """Whether this is the first option that needs it: a mode is turned on once per card."""
    if (address, what) in prepared:
        return False
    prepared.add((address, what))
    return True


def _making(gpu: Gpu, place: Place) -> list[Step]:
    if place.mdev is not None:
        return [
            steps.CreateMdev(
                uuid=place.mdev,
                parent=place.vf or place.gpu,
                type_id=place.type_id or "",
                type_name=place.type_name,
            )
        ]
    match place.mechanism:
        case Mechanism.WHOLE:
            taken = [one for one in gpu.functions if one.driver != VFIO_PCI]
            return [*_mixed_off(gpu), *(bind(one, VFIO_PCI, VFIO_PCI) for one in taken)]
        case Mechanism.VF:
            return _bind_vf(gpu, place)
    assert place.vf is not None
    return [
        steps.SetVgpuType(
            vf=place.vf, type_id=place.type_id, type_name=place.type_name or place.type_id or ""
        )
    ]


def _bind_vf(gpu: Gpu, place: Place) -> list[Step]:
    assert place.vf is not None
    # One that is not there before its siblings are turned on will have no driver.
    vf = vf_of(gpu, place.vf) or Vf(address=place.vf, index=0)
    return [] if vf.driver == VFIO_PCI else [bind(vf, VFIO_PCI, VFIO_PCI)]
