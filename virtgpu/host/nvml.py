"""NVML, where there is one. Its absence is no error, and neither is its failure to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def session() -> Iterator[Any | None]:
    """The module pynvml with NVML initialised; None without module, library or driver.

    A driver that is half loaded fails in more ways than NVML has error codes, so every failure
    to start counts as absence: all facts of sysfs are right without NVML.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        yield None
        return
    try:
        yield pynvml
    finally:
        with suppress(Exception):
            pynvml.nvmlShutdown()
