"""Reservations (who was promised what) and slices (what there is, ours or foreign)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from virtgpu.model.gpu import Holder, Mechanism
from virtgpu.model.names import KernelName, Uuid
from virtgpu.model.pci import PciAddress


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one slice lives on the hardware.

    Which fields are set follows from *mechanism*: *functions* for a whole card (with
    *previous_drivers*, one each, which destroying binds again), *vf* for a plain VF, a
    vendor-VFIO vGPU and an mdev on a VF, *mdev* for mediated devices, *gi_profile_id* for a
    MIG-backed vGPU. *gi_start* and *gi_size* are set only when the GPU instance was made for
    this slice, and goes with it.
    """

    mechanism: Mechanism
    gpu: PciAddress
    functions: tuple[PciAddress, ...] = ()
    vf: PciAddress | None = None
    mdev: Uuid | None = None
    type_id: KernelName | None = None
    type_name: str | None = None
    framebuffer_mib: int | None = None
    gi_profile_id: int | None = None
    gi_start: int | None = None
    gi_size: int | None = None
    previous_drivers: tuple[KernelName | None, ...] = ()


class Reservation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One slice promised; one file in the state directory, written before the hardware.

    *id* is the slice's id for life (for an mdev also its UUID). *guest* is the
    name that it is for, *domain_uuid* the libvirt domain that has it, defined at *domain_uri*.
    *created* is RFC 3339 in UTC. *apply_id* names the apply that made it.
    """

    id: Uuid
    request: str
    place: Place
    created: str
    apply_id: Uuid
    guest: str | None = None
    domain_uuid: str | None = None
    domain_uri: str | None = None
    version: int = 1


class SliceState(StrEnum):
    """*present*: promised and there; *absent*: promised, not there (after a reboot);
    *foreign*: there, not promised by us; *stuck*: an apply that makes or takes it has not ended: it
    is at work, or a write has not come back, or it was cut off and cannot be recovered yet."""

    PRESENT = "present"
    ABSENT = "absent"
    FOREIGN = "foreign"
    STUCK = "stuck"


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One slice as `slice list` shows it: reservation and hardware joined.

    A foreign slice has the mdev UUID or the VF's address as *id*.
    *holders* is None when it is unknown who has it open.
    """

    id: str
    name: str | None
    state: SliceState
    place: Place
    guest: str | None = None
    domain_uuid: str | None = None
    request: str | None = None
    created: str | None = None
    holders: tuple[Holder, ...] | None = None
