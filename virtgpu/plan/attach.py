"""From reservations to what a guest gets in its XML."""

from __future__ import annotations

from collections.abc import Sequence

from virtgpu.model.attachment import Attachment
from virtgpu.model.gpu import Host, Mechanism
from virtgpu.model.slice import Reservation


def attachments(
    host: Host, reservations: Sequence[Reservation], why: Sequence[str] = ()
) -> tuple[Attachment, ...]:
    """The devices of these slices, in order. *why* are the sentences of their choice, one each;
    there may be fewer."""
    reasons = [*why, *[None] * len(reservations)]
    return tuple(
        _attachment(host, one, reason) for one, reason in zip(reservations, reasons, strict=False)
    )


def _attachment(host: Host, one: Reservation, why: str | None) -> Attachment:
    place, gpu = one.place, host.gpu(one.place.gpu)
    functions = place.functions
    if place.mdev is None and not functions and place.vf is not None:
        functions = (place.vf,)
    return Attachment(
        slice_id=one.id,
        mechanism=place.mechanism,
        request=one.request,
        gpu=place.gpu,
        functions=functions if place.mdev is None else (),
        # A vGPU's VF stays on its vendor's own VFIO driver: libvirt must not bind it.
        managed=place.mechanism in (Mechanism.WHOLE, Mechanism.VF),
        mdev=place.mdev,
        type_name=place.type_name,
        framebuffer_mib=place.framebuffer_mib,
        numa_node=gpu.numa_node if gpu is not None else None,
        why=why,
    )
