"""Files that ship in a package of ours, from a wheel and from an editable install alike.

By the package's own loader: importlib.resources would cost every command that reads one file a
twentieth of its time, for what we do not need (zip archives, streams, temporary files).
"""

from __future__ import annotations

import os
from importlib import import_module


def names(package: str, suffix: str, below: str = "") -> tuple[str, ...]:
    """The names in a package's folder (or one *below* it) that end with *suffix*, without it,
    sorted."""
    return tuple(
        sorted(
            name.removesuffix(suffix)
            for name in os.listdir(f"{_folder(package)}/{below}")  # noqa: PTH208 - pathlib is no cheaper here
            if name.endswith(suffix)
        )
    )


def read(package: str, name: str) -> bytes:
    """The content of one file; raises OSError when it is not there."""
    loader = import_module(package).__loader__
    content: bytes = loader.get_data(f"{_folder(package)}/{name}")  # type: ignore[union-attr]
    return content


def _folder(package: str) -> str:
    return os.path.dirname(import_module(package).__file__ or "")  # noqa: PTH120
