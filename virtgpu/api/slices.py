"""What a host has, and its slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from virtgpu.errors import Conflict, NotFound, Usage, VirtgpuError
from virtgpu.model.gpu import Gpu, Host
from virtgpu.model.pci import PciAddress
from virtgpu.model.plan import Plan
from virtgpu.model.request import Request
from virtgpu.model.slice import Reservation, Slice
from virtgpu.model.steps import Reserve

if TYPE_CHECKING:
    from virtgpu.apply.executor import Progress, Result
    from virtgpu.apply.recovery import Report
    from virtgpu.host.door import Door
    from virtgpu.inventory.vendor import Vendor
    from virtgpu.model.details import Details
    from virtgpu.policy.choice import Left

DEFAULT_URI = "qemu:///system"
# What the executor calls under the lock: the host, what is promised, what is stuck.
Planner = Callable[[Host, tuple[Reservation, ...], tuple[str, ...]], Plan]


class OfferedType(msgspec.Struct, frozen=True, kw_only=True):
    """One type on one GPU: *available* more can be made (None: unknown). *reason* says why none,
    or what has to change on the card first, which the plan then does."""

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


class SliceHost:
    """Reading a host, and making and destroying slices on it."""

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

    def details(self, gpu: Gpu) -> Details:
        """BARs, link, reset methods and serial number of one GPU."""
        from virtgpu.inventory import details

        return details.read(self.door, gpu)

    def types(self) -> tuple[OfferedType, ...]:
        """Every type of every GPU with what is really left of it, promises counted."""
        from virtgpu.policy.choice import left
        from virtgpu.policy.ledger import join

        host, stuck_now = self.read(), self._stuck()
        slices = join(host, self._reservations(), stuck_now)
        return tuple(_offered(one) for one in left(host, slices, stuck_now))

    def slices(self) -> tuple[Slice, ...]:
        """Every slice: ours first, then foreign ones; without those that `damaged` names."""
        from virtgpu.apply import reservations
        from virtgpu.policy.ledger import join

        return join(self.read(), reservations.scan(self.door.state_dir)[0], self._stuck())

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

    def check(self, plan: Plan) -> None:
        """Raise `Conflict` when what a plan that was made before rests on has changed."""
        from virtgpu.apply.executor import check_saved

        promised = self._reservations()
        check_saved(self.door, self.vendors, plan)(self.read(), promised, self._stuck())

    def recover(self, *, only_look: bool = False, as_is: Sequence[str] = ()) -> Report:
        """Finish or undo what earlier applies were cut off in; with *only_look* say what there
        is to do, and touch nothing. Plans in *as_is* end even where a device is in a state that
        virtgpu does not leave: it stays so. Raises `NotFound` when one of them has ended."""
        from virtgpu.apply.recovery import look, recover

        if only_look:
            return look(self.door)
        return recover(self.door, self.vendors, as_is=as_is)

    def damaged(self) -> tuple[str, ...]:
        """A sentence for each reservation that cannot be read; while there is one, nothing is
        given away."""
        from virtgpu.apply import reservations

        return tuple(error.message for error in reservations.scan(self.door.state_dir)[1])

    def _planner(
        self,
        requests: Sequence[Request | str],
        guest: str | None,
        domain_uuid: str | None = None,
        defined: Mapping[PciAddress, str] | None = None,
    ) -> Planner:
        from virtgpu.plan.combine import combine
        from virtgpu.plan.create import plan_create

        if guest is not None:
            from virtgpu.domain.build import check_name

            check_name(guest)
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
                    domain_uri=self.connect_uri if domain_uuid is not None else None,
                    stuck=stuck_now,
                    defined=defined,
                )
                plans.append(plan)
                promised = (*promised, *reserved_by(plan))
            return combine(plans)

        return make

    def _taker(self, ids: Sequence[str], adopt: bool, undefining: str | None = None) -> Planner:
        from virtgpu.plan.destroy import plan_destroy
        from virtgpu.policy.ledger import join

        def make(host: Host, promised: tuple[Reservation, ...], stuck_now: tuple[str, ...]) -> Plan:
            known = join(host, promised, stuck_now)
            wanted = [_named(known, one) for one in ids]
            going = frozenset(one.id for one in wanted)
            return plan_destroy(
                host,
                wanted,
                promised,
                ids=self.door.new_uuid,
                created=self._now(),
                adopt=adopt,
                undefined=self._undefined(
                    r for r in promised if r.id in going and r.domain_uuid != undefining
                ),
                undefining=undefining,
            )

        return make

    def _undefined(self, promised: Iterable[Reservation]) -> frozenset[str]:
        """The UUIDs of domains that had one of these and are not defined any more. Raises
        `Conflict` where libvirt does not say."""
        found: set[str] = set()
        for one in promised:
            uuid = one.domain_uuid
            if uuid is not None and uuid not in found and not self._is_defined(one, uuid):
                found.add(uuid)
        return frozenset(found)

    def _is_defined(self, one: Reservation, uuid: str) -> bool:
        from virtgpu.host.libvirt_domains import is_known

        try:
            with self.door.libvirt(one.domain_uri or self.connect_uri) as connection:
                return is_known(connection, uuid)
        except VirtgpuError as error:
            raise Conflict(
                f"slice {one.id} is guest {one.guest}'s, and whether that is still defined is"
                f" unknown: {error.message}",
                hint=error.hint,
            ) from error

    def _now(self) -> str:
        return self.door.now().strftime("%Y-%m-%dT%H:%M:%SZ")


def reserved_by(plan: Plan) -> tuple[Reservation, ...]:
    """The reservations that a plan makes."""
    return tuple(step.reservation for step in plan.steps if isinstance(step, Reserve))


def _named(known: Sequence[Slice], wanted: str) -> Slice:
    """A slice by its id, or by a beginning of it that only one has."""
    exact = [one for one in known if one.id == wanted]
    found = exact or [one for one in known if len(wanted) >= 4 and one.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Usage(f"{wanted!r} begins {len(found)} slice ids", hint="give more of it")
    raise NotFound(f"there is no slice {wanted!r}", hint="see them with: virtgpu slice list")


def _offered(left: Left) -> OfferedType:
    gpu, kind = left.gpu, left.type
    return OfferedType(
        id=kind.id,
        name=kind.name,
        gpu=gpu.address,
        gpu_name=gpu.name,
        mechanism=kind.mechanism.value,
        framebuffer_mib=kind.framebuffer_mib,
        max_instances=kind.max_instances,
        available=left.available,
        reason=left.note,
        gi_profile=kind.gi_profile,
    )
