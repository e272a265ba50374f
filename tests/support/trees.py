"""Host trees as directories: the inputs of the cases laid out as the root of a LocalDoor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from virtgpu.host import paths

CASES = Path(__file__).parent.parent / "data" / "cases"


def case(name: str) -> dict[str, Any]:
    """The tree of one case."""
    found: dict[str, Any] = json.loads((CASES / f"{name}.tree.json").read_text())
    return found


def build(root: Path, tree: dict[str, Any]) -> Path:
    """Lay *tree* out below *root*: files, links, folders, and processes in a /proc that counts as
    whole. Returns *root*."""
    for name, text in tree.get("files", {}).items():
        _write(root / name.strip("/"), text)
    for name, target in tree.get("links", {}).items():
        path = root / name.strip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(_inside(name, target))
    for name in tree.get("dirs", []):
        (root / name.strip("/")).mkdir(parents=True, exist_ok=True)
    for process in tree.get("processes") or []:
        _process(root / "proc" / str(process["pid"]), process)
    for name in ("sys", "proc"):
        (root / name).mkdir(parents=True, exist_ok=True)
    _write(root / paths.SIMULATED_MARK, "1\n")
    return root


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _inside(name: str, target: str) -> str:
    """Links of sysfs are relative; a case may write the whole path."""
    if not target.startswith("/"):
        return target
    depth = name.strip("/").count("/")
    return "../" * depth + target.strip("/")


def _process(folder: Path, process: dict[str, Any]) -> None:
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"{process['comm']}\n")
    for number, target in enumerate(process["fds"], 3):
        (folder / "fd" / str(number)).symlink_to(target)
