"""The writes that bind a function, and the states that they can be left in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from virtgpu.model.binding import Binding, after, before, is_known, writes
from virtgpu.model.pci import PciAddress
from virtgpu.model.steps import BindDriver, inverse

CARD = PciAddress.parse("0000:07:00.0")
drivers = st.sampled_from([None, "nvidia", "vfio-pci", "nouveau"])
bindings = st.builds(Binding, drivers, drivers)
steps = st.builds(
    BindDriver,
    address=st.just(CARD),
    driver=drivers,
    override=drivers,
    previous_driver=drivers,
    previous_override=drivers,
)
TO_GUEST = BindDriver(
    address=CARD,
    driver="vfio-pci",
    override="vfio-pci",
    previous_driver="nvidia",
    previous_override=None,
)


def test_giving_a_card_away_is_what_driverctl_and_libvirt_write() -> None:
    # driverctl set-override: driver_override, unbind, drivers_probe.
    found = [one.file for one in writes(before(TO_GUEST), after(TO_GUEST))]
    assert found == ["driver_override", "unbind", "drivers_probe"]


def test_giving_it_back_clears_the_override_last() -> None:
    found = [(one.file, *one.leaves) for one in writes(after(TO_GUEST), before(TO_GUEST))]
    assert found == [
        ("driver_override", "vfio-pci", "nvidia"),
        ("unbind", None, "nvidia"),
        ("drivers_probe", "nvidia", "nvidia"),
        ("driver_override", "nvidia", None),
    ]


@given(bindings, bindings)
def test_writes_lead_there_and_nowhere_twice(now: Binding, wanted: Binding) -> None:
    found = [one.leaves for one in writes(now, wanted)]
    assert [now, *found][-1] == wanted
    assert len(set(found)) == len(found)


@given(bindings, bindings)
def test_no_driver_takes_it_between_but_the_wanted_one(now: Binding, wanted: Binding) -> None:
    for one in writes(now, wanted):
        if one.file == "unbind":
            assert one.leaves.override == (wanted.driver or wanted.override)


@given(steps, st.data())
def test_whatever_is_cut_off_wherever_is_known(step: BindDriver, data: st.DataObject) -> None:
    now = before(step)
    for wanted in (after(step), before(step), after(step), before(step)):
        states = [now, *(one.leaves for one in writes(now, wanted))]
        now = data.draw(st.sampled_from(states))
        assert is_known(step, now)
        assert is_known(inverse(step), now)  # type: ignore[arg-type]


def test_another_drivers_card_is_not_known() -> None:
    assert not is_known(TO_GUEST, Binding("nouveau", None))
    assert not is_known(TO_GUEST, Binding(None, "nouveau"))
