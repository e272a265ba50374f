"""The steps that a plan is made of: typed arguments only, never a path or a command.

Every step has an inverse of the same kind family, so that one executor per pair does,
reads back and undoes. `inverse` is pure.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from virtgpu.model.names import KernelName, Uuid
from virtgpu.model.pci import PciAddress
from virtgpu.model.slice import Reservation


class _Step(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="step"
):
    """Base of all steps."""


class Reserve(_Step, tag="reserve", frozen=True, kw_only=True):
    """Write the reservation file; undone by removing it."""

    reservation: Reservation


class Release(_Step, tag="release", frozen=True, kw_only=True):
    """Remove the reservation file; undone by writing it again."""

    reservation: Reservation


class BindDriver(_Step, tag="bind-driver", frozen=True, kw_only=True):
    """Bind one PCI function to *driver* by driver_override; None = leave it unbound.

    *previous_driver* and *previous_override* are what was found and what undo restores.
    *override* is the driver_override left behind (None clears it).
    """

    address: PciAddress
    driver: KernelName | None
    override: KernelName | None
    previous_driver: KernelName | None
    previous_override: KernelName | None


class SetVfs(_Step, tag="set-vfs", frozen=True, kw_only=True):
    """Turn VFs on (*previous* 0) or off (*count* 0); *tool* is `sriov_numvfs` or `sriov-manage`.

    *driver* is the PF's own: sriov-manage takes the PF from it and gives it back.
    """

    address: PciAddress
    count: int
    previous: int
    tool: Literal["sriov_numvfs", "sriov-manage"]
    driver: KernelName | None = None


class SetMigMode(_Step, tag="set-mig-mode", frozen=True, kw_only=True):
    """Turn MIG mode on or off; done only when the *current* mode reads back, none pending."""

    address: PciAddress
    enabled: bool
    previous: bool


class SetMixedSize(_Step, tag="set-mixed-size", frozen=True, kw_only=True):
    """Turn mixed-size (heterogeneous) vGPU mode on or off; possible only on an empty card."""

    address: PciAddress
    enabled: bool
    previous: bool


class CreateGpuInstance(_Step, tag="create-gpu-instance", frozen=True, kw_only=True):
    """Make a GPU instance at a memory slot; its id is the driver's to give."""

    address: PciAddress
    profile_id: int
    profile: str
    start: int
    size: int
    compute_instance: bool = True


class DestroyGpuInstance(_Step, tag="destroy-gpu-instance", frozen=True, kw_only=True):
    """Destroy the GPU instance of that profile at that slot, compute instances first."""

    address: PciAddress
    profile_id: int
    profile: str
    start: int
    size: int
    compute_instance: bool = True


class CreateMdev(_Step, tag="create-mdev", frozen=True, kw_only=True):
    """Write *uuid* to the type's `create` below *parent* (a PF or a VF)."""

    uuid: Uuid
    parent: PciAddress
    type_id: KernelName
    type_name: str | None = None


class RemoveMdev(_Step, tag="remove-mdev", frozen=True, kw_only=True):
    """Write 1 to the `remove` of an mdev that nobody holds."""

    uuid: Uuid
    parent: PciAddress
    type_id: KernelName
    type_name: str | None = None


class SetVgpuType(_Step, tag="set-vgpu-type", frozen=True, kw_only=True):
    """Write a type to the VF's `nvidia/current_vgpu_type` and read it back.

    *type_id* None: the id is not known before VFs are on; apply looks *type_name* up in the
    VF's own list, exactly.
    """

    vf: PciAddress
    type_id: KernelName | None
    type_name: str


class ClearVgpuType(_Step, tag="clear-vgpu-type", frozen=True, kw_only=True):
    """Write 0 to the VF's `nvidia/current_vgpu_type`, nobody holding it."""

    vf: PciAddress
    type_id: KernelName | None
    type_name: str


class DefineDomain(_Step, tag="define-domain", frozen=True, kw_only=True):
    """Define a libvirt domain; *previous_xml* None when the name was free."""

    uri: str
    name: str
    uuid: Uuid
    xml: str
    previous_xml: str | None = None


class UndefineDomain(_Step, tag="undefine-domain", frozen=True, kw_only=True):
    """Undefine a libvirt domain that is shut off, with its NVRAM; done, it is not undone.

    *xml* is its definition; *exact*: it goes only while it is still defined by that very text.
    """

    uri: str
    name: str
    uuid: Uuid
    xml: str
    exact: bool = False


Step = (
    Reserve
    | Release
    | BindDriver
    | SetVfs
    | SetMigMode
    | SetMixedSize
    | CreateGpuInstance
    | DestroyGpuInstance
    | CreateMdev
    | RemoveMdev
    | SetVgpuType
    | ClearVgpuType
    | DefineDomain
    | UndefineDomain
)

_PAIRS: tuple[tuple[type[_Step], type[_Step]], ...] = (
    (Reserve, Release),
    (CreateGpuInstance, DestroyGpuInstance),
    (CreateMdev, RemoveMdev),
    (SetVgpuType, ClearVgpuType),
)
_TWIN = dict(_PAIRS) | {b: a for a, b in _PAIRS}


def inverse(step: Step) -> Step:
    """The step that undoes *step*."""
    match step:
        case BindDriver():
            return BindDriver(
                address=step.address,
                driver=step.previous_driver,
                override=step.previous_override,
                previous_driver=step.driver,
                previous_override=step.override,
            )
        case SetVfs():
            return msgspec.structs.replace(step, count=step.previous, previous=step.count)
        case SetMigMode() | SetMixedSize():
            return msgspec.structs.replace(step, enabled=step.previous, previous=step.enabled)
        case DefineDomain():
            if step.previous_xml is not None:
                return msgspec.structs.replace(step, xml=step.previous_xml, previous_xml=step.xml)
            return UndefineDomain(uri=step.uri, name=step.name, uuid=step.uuid, xml=step.xml)
        case UndefineDomain():
            return DefineDomain(uri=step.uri, name=step.name, uuid=step.uuid, xml=step.xml)
    return _TWIN[type(step)](**msgspec.structs.asdict(step))  # type: ignore[return-value]
