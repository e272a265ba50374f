"""Guests as libvirt knows them, on its own test driver: a default one, and one from a node file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.attachments import MDEV, UUID, mdev, vendor_vfio, whole
from virtgpu.domain import read, render
from virtgpu.domain.target import Target
from virtgpu.errors import Conflict, NotFound, Usage, VirtgpuError
from virtgpu.host import paths
from virtgpu.host.libvirt import connected
from virtgpu.host.local import LocalDoor
from virtgpu.platforms import libvirt as guests

pytest.importorskip("libvirt")

THEIRS = "4b200000-0000-4000-8000-00000000aaaa"


@pytest.fixture
def connection() -> Iterator[Any]:
    with connected("test:///default") as connection:
        yield connection


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Any]:
    """A test hypervisor of its own, with one running guest that nobody else made."""
    file = tmp_path / "node.xml"
    file.write_text(
        f"""<node><domain type='test'><name>old</name><uuid>{THEIRS}</uuid>
        <memory>65536</memory><os><type>hvm</type></os><devices>
        <hostdev mode='subsystem' type='pci' managed='yes'>
        <source><address domain='1' bus='101' slot='0' function='0'/></source></hostdev>
        </devices></domain></node>"""
    )
    with connected(f"test://{file}") as connection:
        yield connection


def rendered(name: str, *slices: Any, uuid: str = UUID) -> str:
    return render(
        None, name=name, uuid=uuid, attachments=slices, target=Target(domain_type="test")
    ).decode()


def devices(*slices: Any) -> tuple[read.HostDevice, ...]:
    """As a guest's finished XML gives them."""
    return read.guest(rendered("new", *slices)).devices


# -- listing and looking


def test_the_guests_of_a_connection_are_listed_by_name(connection: Any) -> None:
    guests.define(connection, rendered("a-guest", mdev()))
    found = guests.list_guests(connection)
    assert [one.name for one in found] == ["a-guest", "test"]
    mine, running = found
    assert (mine.uuid, mine.is_active, mine.is_persistent, mine.live) == (UUID, False, True, None)
    assert running.is_active
    assert running.live is not None
    assert running.both == (running.definition, running.live)


def test_a_guest_that_we_defined_is_read_back_with_its_slices(connection: Any) -> None:
    slices = (whole("0001:09:00.0", 4), mdev(), vendor_vfio())
    guests.define(connection, rendered("g1", *slices))
    found = guests.guest(connection, "g1").definition
    assert found.attachments == slices
    assert found.warnings == ()


def test_a_device_that_somebody_else_gave_is_seen(node: Any) -> None:
    (guest,) = guests.list_guests(node)
    assert [one.key for one in guest.definition.devices] == ["0001:65:00.0"]
    assert guest.definition.attachments == ()


def test_a_guest_that_we_cannot_read_hides_no_other(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from virtgpu.domain import elements

    guests.define(connection, rendered("g1", mdev()))
    sizes = [len(guests.guest_xml(connection, name)) for name in ("g1", "test")]
    assert sizes[0] > sizes[1] + 500
    monkeypatch.setattr(elements, "MAX_BYTES", sizes[0] - 1)
    broken, fine = guests.list_guests(connection)
    assert (broken.name, broken.definition.devices) == ("g1", ())
    assert "too many for a domain" in broken.definition.warnings[0]
    assert fine.definition.warnings == ()


def test_a_guest_that_goes_away_meanwhile_is_left_out(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    guests.define(connection, rendered("g1", mdev()))
    domains = connection.listAllDomains()
    guests.undefine(connection, "g1")

    class Late:
        def listAllDomains(self) -> Any:  # noqa: N802
            return domains

    assert [one.name for one in guests.list_guests(Late())] == ["test"]


@pytest.mark.parametrize("act", [guests.guest, guests.guest_xml, guests.is_active, guests.undefine])
def test_a_guest_that_is_not_there_is_named(act: Callable[..., Any], connection: Any) -> None:
    with pytest.raises(NotFound, match="'nobody'") as caught:
        act(connection, "nobody")
    assert "vm list" in (caught.value.hint or "")


def test_the_xml_is_the_next_starts_or_the_running_ones(connection: Any) -> None:
    assert "id=" not in guests.guest_xml(connection, "test").partition(">")[0]
    assert "id='1'" in guests.guest_xml(connection, "test", live=True)
    assert guests.is_active(connection, "test")


def test_the_target_is_what_the_connection_says(connection: Any) -> None:
    found = guests.target(connection)
    assert found.libvirt == connection.getLibVersion()
    assert found.qemu is None
    assert found.domain_type == "test"


@pytest.mark.parametrize("text", ["", "<capabilities/>", "no xml"])
def test_capabilities_that_say_nothing_mean_kvm(text: str) -> None:
    class Silent:
        def getCapabilities(self) -> str:  # noqa: N802
            return text

        def getLibVersion(self) -> int:  # noqa: N802
            return 9_000_000

        def getVersion(self) -> int:  # noqa: N802
            return 7_002_000

        def getType(self) -> str:  # noqa: N802
            return "QEMU"

    assert guests.target(Silent()) == Target(libvirt=9_000_000, qemu=7_002_000)


# -- who has a device


def test_a_device_of_another_guest_is_not_free(node: Any) -> None:
    known = [one for guest in guests.list_guests(node) for one in guest.both]
    with pytest.raises(Conflict, match=r"0001:65:00\.0 belongs to guest 'old'") as caught:
        read.require_free(devices(whole("0001:65:00.0")), known)
    assert "vm show old" in (caught.value.hint or "")
    read.require_free(devices(whole("0000:65:00.0"), mdev()), known)
    read.require_free(devices(whole("0001:65:00.0")), known, uuid=THEIRS)


def test_a_slice_of_a_guest_that_is_shut_off_is_not_free(connection: Any) -> None:
    guests.define(connection, rendered("g1", mdev()))
    known = [one for guest in guests.list_guests(connection) for one in guest.both]
    with pytest.raises(Conflict, match=MDEV):
        read.require_free(devices(mdev(slice_id=THEIRS)), known)
    guests.undefine(connection, "g1")
    known = [one for guest in guests.list_guests(connection) for one in guest.both]
    read.require_free(devices(mdev(slice_id=THEIRS)), known)


def test_a_device_that_is_given_twice_is_refused() -> None:
    twice = (*devices(whole("0001:65:00.0")), *devices(whole("0001:65:00.0")))
    with pytest.raises(Conflict, match=r"0001:65:00\.0 is given to the guest twice"):
        read.require_free(twice, ())


# -- whose machine


class FakeConnection:
    """What libvirt says of where it is."""

    def __init__(self, uri: str, uuid: str | None) -> None:
        self._uri = uri
        self._uuid = uuid

    def getURI(self) -> str:  # noqa: N802
        return self._uri

    def getCapabilities(self) -> str:  # noqa: N802
        inner = "" if self._uuid is None else f"<uuid>{self._uuid}</uuid>"
        return f"<capabilities><host>{inner}</host></capabilities>"


@contextmanager
def machine(folder: Path, uuid: str | None) -> Iterator[LocalDoor]:
    """A machine whose firmware says that UUID."""
    file = folder / "root" / paths.PRODUCT_UUID
    file.parent.mkdir(parents=True)
    if uuid is not None:
        file.write_text(f"{uuid}\n")
    with LocalDoor(folder / "root", state_dir=folder / "state") as door:
        yield door


OURS, OTHER = "c7a5fdbd-cdaf-9455-926a-d65c16db1809", "11111111-2222-3333-4444-555555555555"
BLANK = "00000000-0000-0000-0000-000000000000"
ALL_F = "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"


@pytest.mark.parametrize(
    ("uri", "theirs", "ours", "same"),
    [
        ("qemu:///system", OURS, OURS.upper(), True),
        ("qemu:///system", OTHER, OURS, False),
        ("qemu+ssh://kvm2/system", OURS, OURS, True),
        ("qemu+ssh://kvm2/system", OTHER, OURS, False),
        # Not root, or firmware without one: then libvirt makes up a UUID of its own.
        ("qemu:///system", OTHER, None, True),
        ("qemu:///system", OTHER, BLANK, True),
        ("qemu:///system", OTHER, ALL_F, True),
        ("qemu+unix:///system?socket=/x", None, OURS, True),
        ("qemu+ssh://kvm2/system", OTHER, None, None),
        ("qemu+ssh://kvm2/system", None, None, None),
        ("qemu+tls://kvm2/system", OTHER, BLANK, None),
        ("test:///default", OURS, OURS, False),
        ("test+ssh://kvm2/default", OURS, OURS, False),
    ],
)
def test_slices_are_made_only_where_hypervisor_and_gpus_are_one_machine(
    tmp_path: Path, uri: str, theirs: str | None, ours: str | None, same: bool | None
) -> None:
    with machine(tmp_path, ours) as door:
        connection = FakeConnection(uri, theirs)
        assert guests.is_same_machine(connection, door) is same
        if same is True:
            guests.require_same_machine(connection, door)
            return
        with pytest.raises(Usage) as caught:
            guests.require_same_machine(connection, door)
        assert uri in caught.value.message
        assert "--no-slice" in (caught.value.hint or "")


def test_the_test_driver_is_never_the_machine_with_the_gpus(
    connection: Any, node: Any, tmp_path: Path
) -> None:
    with machine(tmp_path, OURS) as door:
        assert guests.is_same_machine(connection, door) is False
        assert guests.is_same_machine(node, door) is False


def test_a_simulated_host_goes_with_any_hypervisor(connection: Any, tmp_path: Path) -> None:
    from virtgpu.sim.door import SimDoor

    door = SimDoor("a40x2-mdev-vf", state_dir=tmp_path, environment={})
    assert guests.is_same_machine(connection, door) is True


# -- refusals


def test_a_closed_connection_is_an_error_of_ours() -> None:
    with connected("test:///default") as connection:
        pass
    for act in (guests.list_guests, guests.target, lambda one: guests.guest(one, "test")):
        with pytest.raises(VirtgpuError):
            act(connection)  # type: ignore[operator]
