"""The guests of a host: their XML, and their definitions in libvirt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from virtgpu.api.slices import Planner, SliceHost, reserved_by
from virtgpu.errors import Conflict
from virtgpu.model.attachment import Attachment
from virtgpu.model.gpu import Host
from virtgpu.model.plan import Plan
from virtgpu.model.request import Request
from virtgpu.model.slice import Reservation, Slice, SliceState
from virtgpu.model.steps import DefineDomain

if TYPE_CHECKING:
    from virtgpu.apply.executor import Progress, Result
    from virtgpu.domain.lint import Context as LintContext
    from virtgpu.domain.lint import Report as LintReport
    from virtgpu.domain.read import HostDevice
    from virtgpu.domain.target import Target
    from virtgpu.platforms.libvirt import KnownGuest


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


class GuestHost(SliceHost):
    """Rendering, defining and undefining guests that have slices of this host."""

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
        from virtgpu.policy.ledger import join

        host, promised = self.read(), self._reservations()
        wanted = [one if isinstance(one, Request) else Request.parse(one) for one in requests]
        stuck_now = self._stuck()
        unbound = (one for one in promised if one.domain_uuid is None)
        ready, missing = _ready(wanted, join(host, promised, stuck_now), unbound, name)
        plan = self._planner(missing, name)(host, promised, stuck_now) if missing else None
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
    ) -> Planner:
        from virtgpu.domain import startable
        from virtgpu.domain.build import check_name
        from virtgpu.domain.read import guest as read_guest
        from virtgpu.domain.read import require_free
        from virtgpu.plan.define import plan_define
        from virtgpu.platforms import libvirt as guests
        from virtgpu.policy.ledger import join

        check_name(name)
        if make_slices:
            guests.require_same_machine(connection, self.door)
        if guests.lookup_xml(connection, name) is not None:
            raise Conflict(
                f"there is a guest {name!r} already",
                hint=f"see it with: virtgpu vm show {name}; remove it: virtgpu vm undefine {name}",
            )
        target = guests.target(connection)
        there = guests.list_guests(connection)
        known = [one for guest in there for one in guest.both]
        uuids = frozenset(guest.uuid for guest in there)
        uuid = self.door.new_uuid()
        own = () if shape is None or shape.template is None else read_guest(shape.template).devices
        defined = {d.pci: one.name or "?" for one in known for d in one.devices if d.pci}
        defined |= {d.pci: name for d in own if d.pci}
        wanted = [one if isinstance(one, Request) else Request.parse(one) for one in requests]

        def is_free(one: Reservation) -> bool:
            # Its guest may have been undefined by somebody else's tool.
            orphan = one.domain_uri == self.connect_uri and one.domain_uuid not in uuids
            return one.domain_uuid is None or orphan

        def make(host: Host, promised: tuple[Reservation, ...], stuck_now: tuple[str, ...]) -> Plan:
            slices = join(host, promised, stuck_now)
            ready, missing = _ready(wanted, slices, filter(is_free, promised), name)
            planner = self._planner(missing, name, uuid, defined) if missing else None
            plan = planner(host, promised, stuck_now) if planner is not None else None
            made = ready + (list(reserved_by(plan)) if plan is not None else [])
            attached = self._attachments(host, made, plan)
            refusal = startable(target, attached)
            if refusal is not None:
                raise refusal
            xml = self._xml(host, name, made, plan, shape, uuid=uuid, target=target)
            require_free(read_guest(xml).devices, known)
            if make_slices:
                _refuse_taken(own, slices)
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

    def _undefiner(self, name: str, keep_slices: bool) -> Planner:
        from virtgpu.plan.define import plan_undefine
        from virtgpu.platforms import libvirt as guests

        with self.libvirt() as connection:
            guest = guests.guest(connection, name)
            guests.require_undefinable(connection, name)
            xml = guests.guest_xml(connection, name)

        def make(host: Host, promised: tuple[Reservation, ...], stuck_now: tuple[str, ...]) -> Plan:
            mine = [one for one in promised if one.domain_uuid == guest.uuid]
            taken = None
            if mine and not keep_slices:
                ids = [one.id for one in mine]
                taken = self._taker(ids, False, guest.uuid)(host, promised, stuck_now)
            return plan_undefine(
                taken,
                uri=self.connect_uri,
                name=name,
                uuid=guest.uuid,
                xml=xml,
                has_nvram=guest.definition.has_nvram,
                kept=mine if keep_slices else (),
                plan_id=self.door.new_uuid(),
                host=self.door.label,
                created=self._now(),
            )

        return make

    def lint_context(self, *, with_host: bool = True) -> LintContext:
        """What is known of this host for checking domains that are meant for it: its devices."""
        from virtgpu.domain.lint import Context
        from virtgpu.inventory.view import read_view

        return (
            Context(view=read_view(self.door), exists=self.door.exists) if with_host else Context()
        )

    def lint(
        self,
        names: Sequence[str] | None = None,
        *,
        ignore: Sequence[str] = (),
        schema: Any = "auto",
    ) -> tuple[tuple[str, LintReport], ...]:
        """Check the definitions of guests (None: all), each also against the others and, where it
        is the machine of the hypervisor, this host. Raises `NotFound`, and `Config` for the
        schema."""
        from virtgpu.domain.lint import lint
        from virtgpu.platforms import libvirt as guests

        with self.libvirt() as connection:
            known = guests.list_guests(connection)
            if names is None:  # one of them may go away while we look
                read = ((one.name, guests.lookup_xml(connection, one.name)) for one in known)
                texts = [(name, text) for name, text in read if text is not None]
            else:
                texts = [
                    (name, guests.guest_xml(connection, name)) for name in dict.fromkeys(names)
                ]
            base = self.lint_context(
                with_host=guests.is_same_machine(connection, self.door) is True
            )
            base = base._replace(target=guests.target(connection))
        results = []
        for name, text in texts:
            others = tuple(guest for one in known if one.name != name for guest in one.both)
            context = base._replace(others=others)
            found = lint(text, context, schema=schema, ignore=ignore, source=f"guest {name!r}")
            results.append((name, found))
        return tuple(results)

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


def _ready(
    wanted: Sequence[Request],
    slices: Sequence[Slice],
    promised: Iterable[Reservation],
    guest: str,
) -> tuple[list[Reservation], list[Request]]:
    """Those of the *promised* slices, in no domain, that were made for the guest before and that
    the requests name, and the rest.

    Raises `Conflict` for one of them that is not there, or that something was begun with.
    """
    states = {one.id: one.state for one in slices}
    free = [one for one in promised if one.guest == guest]
    ready: list[Reservation] = []
    missing: list[Request] = []
    for request in wanted:
        fitting = [one for one in free if one.request == str(request)][: request.count]
        if len(fitting) < request.count:
            missing.append(request)
            continue
        for one in fitting:
            _require_present(one, states[one.id])
        ready += fitting
        free = [one for one in free if one not in fitting]
    return ready, missing


def _require_present(one: Reservation, state: SliceState) -> None:
    if state is SliceState.ABSENT:
        raise Conflict(
            f"slice {one.id} was made for {one.guest} and is not there any more, as after a reboot",
            hint=f"give it up and ask again: virtgpu slice destroy {one.id}",
        )
    if state is not SliceState.PRESENT:
        raise Conflict(
            f"what was begun with slice {one.id} of {one.guest} has not ended",
            hint="virtgpu recover ends it, or says what it waits for",
        )


def _refuse_taken(devices: Sequence[HostDevice], slices: Sequence[Slice]) -> None:
    """Raise `Conflict` when a slice is on a device that a guest's own template gives it."""
    for device in devices:
        for one in slices:
            place = one.place
            if device.key in (place.mdev, place.vf, *place.functions):
                raise Conflict(
                    f"the template gives {device.key}, which slice {one.id} of"
                    f" {one.guest or 'nobody we know'} has",
                    hint="ask for it with --gpu, and leave it out of the template",
                )
