"""Binding a PCI function: the writes in order, and every state that they can be left in.

The states between two bindings are not listed a second time: they follow from the writes, and so
do those of a way back that was cut off itself.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from virtgpu.model.gpu import Function, Vf
from virtgpu.model.steps import BindDriver


class Binding(NamedTuple):
    """What a PCI function is bound to, and its driver_override; None is none."""

    driver: str | None
    override: str | None


class BindingWrite(NamedTuple):
    """One write to a *file* of the function, its driver or its bus, and what it *leaves*."""

    file: Literal["driver_override", "unbind", "drivers_probe"]
    leaves: Binding


def writes(now: Binding, wanted: Binding) -> tuple[BindingWrite, ...]:
    """From one binding to another: driver_override, unbind, drivers_probe, driver_override.

    The order of Linux's driver-override interface (Documentation/ABI/testing/sysfs-bus-pci) and
    of libvirt: while the function is without a driver, only the wanted one may take it.
    """
    found: list[BindingWrite] = []
    if now.driver != wanted.driver:
        now = _override(found, now, wanted.driver or wanted.override)
        if now.driver is not None:
            now = now._replace(driver=None)
            found.append(BindingWrite("unbind", now))
        if wanted.driver is not None:
            now = now._replace(driver=wanted.driver)
            found.append(BindingWrite("drivers_probe", now))
    _override(found, now, wanted.override)
    return tuple(found)


def _override(found: list[BindingWrite], now: Binding, override: str | None) -> Binding:
    if now.override == override:
        return now
    after = now._replace(override=override)
    found.append(BindingWrite("driver_override", after))
    return after


def bind(function: Function | Vf, driver: str | None, override: str | None) -> BindDriver:
    """The step that takes a function from what it is bound to now."""
    return BindDriver(
        address=function.address,
        driver=driver,
        override=override,
        previous_driver=function.driver,
        previous_override=function.driver_override,
    )


def before(step: BindDriver) -> Binding:
    """What the step finds."""
    return Binding(step.previous_driver, step.previous_override)


def after(step: BindDriver) -> Binding:
    """What the step leaves."""
    return Binding(step.driver, step.override)


def is_known(step: BindDriver, now: Binding) -> bool:
    """Whether doing the step, undoing it, or going either way from where the other was cut off
    can leave this binding. One of anybody else's is not known."""
    ends = before(step), after(step)
    reached = {*ends, Binding(None, None)}
    for start, end in (ends, ends[::-1]):
        reached |= {one.leaves for one in writes(start, end)}
    drivers = {one.driver for one in reached}
    return now.driver in drivers and now.override in drivers | {one.override for one in reached}
