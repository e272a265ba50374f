"""The host lock around what changes hardware and reservations, and around nothing else.

A call into libvirt may run our own hook, which takes the same lock: both would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from virtgpu.host import state
from virtgpu.model import steps
from virtgpu.model.steps import Step

_LIBVIRT = (steps.DefineDomain, steps.UndefineDomain)


def is_libvirts(step: Step) -> bool:
    """Whether the step is done by libvirt."""
    return isinstance(step, _LIBVIRT)


class HostLock:
    """Held or not, as the step at hand needs it."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._held: AbstractContextManager[Callable[[str], None]] | None = None
        self._note: Callable[[str], None] | None = None

    def take(self, what: str) -> None:
        """Hold it; *what* is told to those who wait. Raises `Conflict` after a while."""
        if self._note is not None:
            self._note(what)
            return
        held = state.host_lock(self._state_dir, what=what)
        self._note = held.__enter__()
        self._held = held

    def let_go(self) -> None:
        """Do not hold it any more."""
        if self._held is not None:
            held, self._held, self._note = self._held, None, None
            held.__exit__(None, None, None)

    def suit(self, step: Step, what: str) -> None:
        """Hold it for steps on hardware, not for libvirt's."""
        if is_libvirts(step):
            self.let_go()
        else:
            self.take(what)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.let_go()
