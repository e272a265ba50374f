"""The Python API: one host, its GPUs, slices and guests.

>>> import virtgpu
>>> host = virtgpu.connect("sim:a40x2-mdev-vf", state_dir="/tmp/virtgpu-doc")  # doctest: +SKIP
>>> plan = host.plan("A40-12Q", guest="render01")  # doctest: +SKIP
>>> print(plan.describe())  # doctest: +SKIP
>>> result = host.apply(plan)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from virtgpu.errors import Conflict, NotFound, Unsupported, Usage
from virtgpu.model.attachment import Attachment
from virtgpu.model.gpu import Gpu, Host, SliceType
from virtgpu.model.pci import PciAddress
from virtgpu.model.plan import Plan
from virtgpu.model.request import Request
from virtgpu.model.slice import Reservation, Slice
from virtgpu.model.steps import DefineDomain, Reserve

if TYPE_CHECKING:
    from virtgpu.apply.executor import Progress, Result
    from virtgpu.apply.recovery import Report
    from virtgpu.domain.target import Target
    from virtgpu.host.door import Door
    from virtgpu.inventory.vendor import Vendor
    from virtgpu.platforms.libvirt import KnownGuest

DEFAULT_URI = "qemu:///system"


def connect(
    target: str = "local",
    *,
    connect_uri: str | None = None,
    state_dir: Path | str | None = None,
) -> HostHandle:
    """A handle on one host: `local`, `sim:NAME` (a shipped profile) or `sim:FILE`.

    *connect_uri* is libvirt's (default `qemu:///system`); *state_dir* is where reservations and
    journals are (default /var/lib/virtgpu as root). Nothing is read or opened yet but the profile.

    Raises `Usage` for another target, `NotFound` or `Config` for a profile, `HostError` when this
    kernel cannot keep us within /sys.
    """
    from virtgpu.host.state import default_state_dir

    folder = Path(state_dir) if state_dir is not None else default_state_dir()
    return HostHandle(_door(target, folder.absolute()), connect_uri=connect_uri)


def _door(target: str, folder: Path) -> Door:
    if target == "local":
        from virtgpu.host.local import LocalDoor

        return LocalDoor(state_dir=folder)
    kind, colon, name = target.partition(":")
    if kind == "sim" and colon and name:
        from virtgpu.sim.door import SimDoor

        return SimDoor(name, state_dir=folder)
    raise Usage(
        f"host {target!r} is neither local nor sim:PROFILE",
        hint="see the profiles with: virtgpu sim list",
    )


class OfferedType(msgspec.Struct, frozen=True, kw_only=True):
    """One type on one GPU: *available* more can be made now (None: unknown), *reason* why none."""

    id: str
    name: str | None
    gpu: PciAddress
    gpu_name: str | None
    mechanism: str
    framebuffer_mib: int | None
    max_instances: int | None
    available: int | None
    reason: str | None = None
    gi_profile: str | None = None


class Defined(msgspec.Struct, frozen=True, kw_only=True):
    """A guest that was defined, with its slices."""

    name: str
    uuid: str
    slices: tuple[Reservation, ...]
    recovered: tuple[str, ...] = ()


class GuestShape(msgspec.Struct, frozen=True, kw_only=True):
    """How a guest is made beside its GPUs. *template* is a file's text, None the shipped one."""

    template: bytes | None = None
    memory_mib: int | None = None
    vcpus: int | None = None
    display: bool = False


class HostHandle:
    """One host. Every method reads the host anew; none keeps anything between calls."""

    def __init__(
        self,
        door: Door,
        *,
        connect_uri: str | None = None,
        vendors: Sequence[Vendor] | None = None,
    ) -> None:
        self.door = door
        self.connect_uri = connect_uri or DEFAULT_URI
        self._vendors = vendors

    @property
    def vendors(self) -> Sequence[Vendor]:
        """The GPU vendors that are known."""
        if self._vendors is None:
            from virtgpu.vendors import load

            self._vendors = load()
        return self._vendors

    # -- reading

    def read(self) -> Host:
        """The host as it is now."""
        from virtgpu.inventory import read_host

        return read_host(self.door, self.vendors)

    def gpu(self, address: str) -> Gpu:
        """One GPU by its address in any spelling; raises `NotFound`."""
        wanted = PciAddress.parse(address)
        found = self.read().gpu(wanted)
        if found is None:
            raise NotFound(f"there is no GPU {wanted}", hint="see them with: virtgpu gpu list")
        return found

    def types(self) -> tuple[OfferedType, ...]:
        """Every type of every GPU with what is really left of it, promises counted."""
        from virtgpu.policy.choice import left

        host = self.read()
        counts = left(host, self._joined(host), self._stuck())
        return tuple(
            _offered(gpu, offer.type, counts[gpu.address, offer.type.id])
            for gpu in host.gpus
            for offer in gpu.offers
        )

    def slices(self) -> tuple[Slice, ...]:
        """Every slice: ours first, then foreign ones."""
        return self._joined(self.read())

    def _joined(self, host: Host) -> tuple[Slice, ...]:
        from virtgpu.policy.ledger import join

        return join(host, self._reservations(), self._stuck())

    def _reservations(self) -> tuple[Reservation, ...]:
        from virtgpu.apply import reservations

        return reservations.load(self.door.state_dir)

    def _stuck(self) -> tuple[str, ...]:
        from virtgpu.apply import stuck

        return stuck.load(self.door)

    # -- slices

    def plan(self, request: Request | str, *, guest: str | None = None) -> Plan:
        """What making that slice would do, and why there; nothing is touched.

        Raises `Usage`, `NotFound`, `Capacity`, `Conflict` or `Unsupported` with the reason.
        """
        plan = self._planner([request], guest)(self.read(), self._reservations(), self._stuck())
        return plan.sealed()

    def create(
        self,
        request: Request | str,
        *,
        guest: str | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Choose, reserve and make it in one critical section; raises also what applying does:
        `RolledBack`, `RecoveryNeeded`."""
        from virtgpu.apply.executor import execute

        planner = self._planner([request], guest)
        return execute(self.door, self.vendors, planner, progress=progress)

    def plan_destroy(self, ids: Sequence[str], *, adopt: bool = False) -> Plan:
        """What destroying these slices would do; nothing is touched."""
        plan = self._taker(ids, adopt)(self.read(), self._reservations(), self._stuck())
        return plan.sealed()

    def destroy(
        self, ids: Sequence[str], *, adopt: bool = False, progress: Progress | None = None
    ) -> Result:
        """Destroy slices and give up their reservations. Foreign ones only with *adopt*."""
        from virtgpu.apply.executor import execute

        taker = self._taker(ids, adopt)
        return execute(self.door, self.vendors, taker, progress=progress)

    def apply(self, plan: Plan, *, progress: Progress | None = None) -> Result:
        """Do a plan that was made before; raises `Conflict` when what it rests on has changed."""
        from virtgpu.apply.executor import apply_saved

        return apply_saved(self.door, self.vendors, plan, progress=progress)

    def recover(self) -> Report:
        """Finish or undo what earlier applies were cut off in."""
        from virtgpu.apply.recovery import recover

        return recover(self.door, self.vendors)

    def _planner(
        self,
        requests: Sequence[Request | str],
        guest: str | None,
        domain_uuid: str | None = None,
    ) -> Callable[[Host, tuple[Reservation, ...], tuple[str, ...]], Plan]:
        from virtgpu.plan.combine import combine
        from virtgpu.plan.create import plan_create

        wanted = [one if isinstance(one, Request) else Request.parse(one) for one in requests]
        if not wanted:
            raise Usage("no GPU was asked for", hint="--gpu A40-12Q, for example")

        def make(host: Host, promised: tuple[Reservation, ...], stuck_now: tuple[str, ...]) -> Plan:
            plan_id, created = self.door.new_uuid(), self._now()
            plans: list[Plan] = []
            for request in wanted:
                plan = plan_create(
                    host,
                    request,
                    promised,
                    guest=guest,
                    ids=self.door.new_uuid,
                    created=created,
                    apply_id=plan_id,
                    domain_uuid=domain_uuid,
                    stuck=stuck_now,
                )
                plans.append(plan)
                promised = (*promised, *reserved_by(plan))
            return combine(plans)

        return make

    def _taker(
        self, ids: Sequence[str], adopt: bool
    ) -> Callable[[Host, tuple[Reservation, ...], tuple[str, ...]], Plan]:
        from virtgpu.plan.destroy import plan_destroy
        from virtgpu.policy.ledger import join

        def make(host: Host, promised: tuple[Reservation, ...], stuck_now: tuple[str, ...]) -> Plan:
            known = join(host, promised, stuck_now)
            return plan_destroy(
                host,
                [_named(known, one) for one in ids],
                promised,
                ids=self.door.new_uuid,
                created=self._now(),
                adopt=adopt,
            )

        return make

    def _now(self) -> str:
        return self.door.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    # -- guests

    def render(
        self,
        name: str,
        requests: Sequence[Request | str],
        shape: GuestShape | None = None,
        *,
        uuid: str | None = None,
    ) -> bytes:
        """The XML of a guest with these slices as they would be made; nothing is touched.

        Slices that were made for this guest before are used where they fit the request.
        """
        host, promised = self.read(), self._reservations()
        wanted = [one if isinstance(one, Request) else Request.parse(one) for one in requests]
        ready, missing = _ready(wanted, promised, name)
        plan = self._planner(missing, name)(host, promised, self._stuck()) if missing else None
        made = ready + (list(reserved_by(plan)) if plan is not None else [])
        return self._xml(host, name, made, plan, shape, uuid=uuid)

    def _xml(
        self,
        host: Host,
        name: str,
        made: Sequence[Reservation],
        plan: Plan | None,
        shape: GuestShape | None,
        *,
        uuid: str | None,
        target: Target | None = None,
    ) -> bytes:
        from virtgpu.domain import Target, render

        found = shape or GuestShape()
        return render(
            found.template,
            name=name,
            uuid=uuid,
            attachments=self._attachments(host, made, plan),
            target=target or Target(),
            memory_mib=found.memory_mib,
            vcpus=found.vcpus,
            display=found.display,
        )

    def _attachments(
        self, host: Host, made: Sequence[Reservation], plan: Plan | None
    ) -> tuple[Attachment, ...]:
        from virtgpu.plan.attach import attachments

        return attachments(host, made, why=plan.why if plan is not None else ())

    def plan_define(
        self,
        name: str,
        requests: Sequence[Request | str],
        shape: GuestShape | None = None,
        *,
        make_slices: bool = True,
    ) -> Plan:
        """What `define` would do; nothing is touched."""
        with self.libvirt() as connection:
            definer = self._definer(connection, name, requests, shape, make_slices=make_slices)
            plan = definer(self.read(), self._reservations(), self._stuck())
        return plan.sealed()

    def define(
        self,
        name: str,
        requests: Sequence[Request | str],
        shape: GuestShape | None = None,
        *,
        make_slices: bool = True,
        progress: Progress | None = None,
    ) -> Defined:
        """Make the slices, and define a guest that has them in libvirt.

        Raises `Conflict` when the name is taken, `Usage` when the hypervisor is another machine
        than the one with the GPUs (unless *make_slices* is false), `Unsupported` when its libvirt
        could not start such a guest, and what `create` raises.
        """
        from virtgpu.apply.executor import execute

        with self.libvirt() as connection:
            definer = self._definer(connection, name, requests, shape, make_slices=make_slices)
        result = execute(self.door, self.vendors, definer, progress=progress)
        uuid = next(one.uuid for one in result.plan.steps if isinstance(one, DefineDomain))
        mine = tuple(one for one in self._reservations() if one.domain_uuid == uuid)
        return Defined(name=name, uuid=uuid, slices=mine, recovered=result.recovered)

    def _definer(
        self,
        connection: Any,
        name: str,
        requests: Sequence[Request | str],
        shape: GuestShape | None,
        *,
        make_slices: bool,
    ) -> Callable[[Host, tuple[Reservation, ...], tuple[str, ...]], Plan]:
        from virtgpu.domain import startable
        from virtgpu.domain.build import check_name
        from virtgpu.domain.read import require_free
        from virtgpu.plan.define import plan_define
        from virtgpu.platforms import libvirt as guests

        check_name(name)
        if make_slices:
            guests.require_same_machine(connection, self.door)
        if guests.lookup_xml(connection, name) is not None:
            raise Conflict(
                f"there is a guest {name!r} already",
                hint=f"see it with: virtgpu vm show {name}; remove it: virtgpu vm undefine {name}",
            )
        target, known = guests.target(connection), guests.list_guests(connection)
        uuid = self.door.new_uuid()
        wanted = [one if isinstance(one, Request) else Request.parse(one) for one in requests]

        def make(host: Host, promised: tuple[Reservation, ...], stuck_now: tuple[str, ...]) -> Plan:
            ready, missing = _ready(wanted, promised, name)
            plan = (
                self._planner(missing, name, uuid)(host, promised, stuck_now) if missing else None
            )
            made = ready + (list(reserved_by(plan)) if plan is not None else [])
            attached = self._attachments(host, made, plan)
            refusal = startable(target, attached)
            if refusal is not None:
                raise refusal
            require_free(attached, [one for guest in known for one in guest.both])
            xml = self._xml(host, name, made, plan, shape, uuid=uuid, target=target)
            return plan_define(
                plan if make_slices else None,
                uri=self.connect_uri,
                name=name,
                uuid=uuid,
                xml=xml.decode(),
                bound=[] if not make_slices else ready,
                plan_id=self.door.new_uuid(),
                host=self.door.label,
                created=self._now(),
            )

        return make

    def plan_undefine(self, name: str, *, keep_slices: bool = False) -> Plan:
        """What `undefine` would do; nothing is touched."""
        undefiner = self._undefiner(name, keep_slices)
        return undefiner(self.read(), self._reservations(), self._stuck()).sealed()

    def undefine(
        self, name: str, *, keep_slices: bool = False, progress: Progress | None = None
    ) -> Result:
        """Undefine a guest that is shut off, and give back the slices that we made for it."""
        from virtgpu.apply.executor import execute

        undefiner = self._undefiner(name, keep_slices)
        return execute(self.door, self.vendors, undefiner, progress=progress)

    def _undefiner(
        self, name: str, keep_slices: bool
    ) -> Callable[[Host, tuple[Reservation, ...], tuple[str, ...]], Plan]:
        from virtgpu.plan.define import plan_undefine
        from virtgpu.platforms import libvirt as guests

        with self.libvirt() as connection:
            guest = guests.guest(connection, name)
            if guest.is_active:
                raise Conflict(
                    f"guest {name!r} is running", hint=f"shut it down first: virsh shutdown {name}"
                )
            xml = guests.guest_xml(connection, name)

        def make(host: Host, promised: tuple[Reservation, ...], stuck_now: tuple[str, ...]) -> Plan:
            mine = [one for one in promised if one.domain_uuid == guest.uuid]
            taken = None
            if mine and not keep_slices:
                ids = [one.id for one in mine]
                taken = self._taker(ids, False)(host, promised, stuck_now)
            return plan_undefine(
                taken,
                uri=self.connect_uri,
                name=name,
                uuid=guest.uuid,
                xml=xml,
                kept=mine if keep_slices else (),
                plan_id=self.door.new_uuid(),
                host=self.door.label,
                created=self._now(),
            )

        return make

    def guests(self) -> tuple[KnownGuest, ...]:
        """All guests of the connection."""
        from virtgpu.platforms import libvirt as guests

        with self.libvirt() as connection:
            return guests.list_guests(connection)

    def guest(self, name: str) -> KnownGuest:
        """One guest; raises `NotFound`."""
        from virtgpu.platforms import libvirt as guests

        with self.libvirt() as connection:
            return guests.guest(connection, name)

    def guest_xml(self, name: str, *, live: bool = False) -> str:
        """The definition of a guest, or what runs now; raises `NotFound`."""
        from virtgpu.platforms import libvirt as guests

        with self.libvirt() as connection:
            return guests.guest_xml(connection, name, live=live)

    @contextmanager
    def libvirt(self) -> Iterator[Any]:
        """An open connection to libvirt."""
        with self.door.libvirt(self.connect_uri) as connection:
            yield connection

    # -- recording

    def record(self) -> dict[str, Any]:
        """A profile of this host for `sim:FILE`, without serials or host names."""
        from virtgpu.sim.record import record

        return record(self.door)


def reserved_by(plan: Plan) -> tuple[Reservation, ...]:
    """The reservations that a plan makes."""
    return tuple(step.reservation for step in plan.steps if isinstance(step, Reserve))


def _ready(
    wanted: Sequence[Request], promised: Sequence[Reservation], guest: str
) -> tuple[list[Reservation], list[Request]]:
    """The slices that were made for the guest before and that the requests name, and the rest."""
    free = [one for one in promised if one.guest == guest and one.domain_uuid is None]
    ready: list[Reservation] = []
    missing: list[Request] = []
    for request in wanted:
        fitting = [one for one in free if one.request == str(request)][: request.count]
        if len(fitting) < request.count:
            missing.append(request)
            continue
        ready += fitting
        free = [one for one in free if one not in fitting]
    return ready, missing


def _named(known: Sequence[Slice], wanted: str) -> Slice:
    """A slice by its id, or by a beginning of it that only one has."""
    exact = [one for one in known if one.id == wanted]
    found = exact or [one for one in known if len(wanted) >= 4 and one.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Usage(f"{wanted!r} begins {len(found)} slice ids", hint="give more of it")
    raise NotFound(f"there is no slice {wanted!r}", hint="see them with: virtgpu slice list")


def _offered(gpu: Gpu, kind: SliceType, left: tuple[int | None, str | None]) -> OfferedType:
    available, reason = left
    return OfferedType(
        id=kind.id,
        name=kind.name,
        gpu=gpu.address,
        gpu_name=gpu.name,
        mechanism=kind.mechanism.value,
        framebuffer_mib=kind.framebuffer_mib,
        max_instances=kind.max_instances,
        available=available,
        reason=reason,
        gi_profile=kind.gi_profile,
    )


def simulated() -> tuple[tuple[str, str], ...]:
    """The shipped profiles of simulated hosts: name, and one sentence about it."""
    from virtgpu.sim import profiles

    return tuple((name, profiles.load(name).about) for name in profiles.names())


def run_simulated(profile: str, command: Sequence[str], *, state_dir: Path, **options: Any) -> int:
    """Run a command on the mounted simulated host; see `virtgpu.sim.run.run`."""
    try:
        from virtgpu.sim.run import run
    except ImportError as error:  # Linux only
        raise Unsupported(f"this system cannot mount a simulated host: {error}") from error
    return run(profile, command, state_dir=state_dir, **options)
