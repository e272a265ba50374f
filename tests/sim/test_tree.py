"""The simulated kernel's files: what a path leads to, however often the tree has changed."""

from __future__ import annotations

import errno
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtgpu.sim.tree import Node, Tree

NAMES = ("a", "b", "c")
TEXTS = ("../a", "b", "/a/b", ".", "../../c", "a/../b", "/c/")


def plainly(tree: Tree, path: str, links: list[int], at: Node | None = None) -> Node | None:
    """path_resolution(7), a component at a time and nothing remembered; None for any errno."""
    node = tree.root if at is None or path.startswith("/") else at
    for name in path.split("/"):
        if name in ("", "."):
            continue
        if name == "..":
            node = node.parent or node
            continue
        child = (node.children or {}).get(name)
        if child is None:
            return None
        if stat.S_ISLNK(child.mode):
            links.append(1)
            if len(links) > 40:
                return None
            child = plainly(tree, child.readlink(), links, node)
            if child is None:
                return None
        node = child
    return node


def found(tree: Tree, path: str) -> Node | None:
    try:
        return tree.find(path)
    except OSError as error:
        assert error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
        return None


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("dir", "file", "link", "text", "remove")),
        st.integers(0, 30),
        st.sampled_from(NAMES),
        st.integers(0, 30),
    ),
    max_size=25,
)


def change(tree: Tree, kind: str, where: int, name: str, other: int) -> None:
    everything = list(tree.walk())
    folders = [one for one in everything if one.is_directory]
    at, target = folders[where % len(folders)], everything[other % len(everything)]
    if kind == "remove":
        if target is not tree.root:
            tree.remove(target)
    elif name in at.entries:
        return
    elif kind == "dir":
        tree.dir(name, at)
    elif kind == "file":
        tree.file(at, name, "text")
    else:
        tree.link(at, name, target if kind == "link" else TEXTS[other % len(TEXTS)])


@given(CHANGES)
def test_a_path_leads_where_it_leads_without_memory(
    changes: list[tuple[str, int, str, int]],
) -> None:
    tree = Tree()
    paths = [f"{one}/{two}/{three}" for one in NAMES for two in (*NAMES, "..") for three in NAMES]
    for kind, where, name, other in changes:
        change(tree, kind, where, name, other)
        for path in paths:
            folder = path.rpartition("/")[0]
            assert found(tree, folder) is plainly(tree, folder, [])
            assert found(tree, path) is plainly(tree, path, [])


def test_a_folder_that_came_again_is_the_new_one() -> None:
    tree = Tree()
    tree.link(tree.dir("bus"), "one", tree.dir("devices/one"))
    tree.file(tree.dir("devices/one"), "text", "old")
    assert tree.find("bus/one/text").read is not None
    tree.remove(tree.find("devices/one"))
    with pytest.raises(OSError, match="No such file"):
        tree.find("bus/one/text")
    again = tree.file(tree.dir("devices/one"), "text", "new")
    assert tree.find("bus/one/text") is again


def test_links_that_lead_to_each_other_end_with_the_kernels_answer() -> None:
    tree = Tree()
    tree.link(tree.root, "a", "b")
    tree.link(tree.root, "b", "a")
    with pytest.raises(OSError, match="Too many levels") as caught:
        tree.find("a/x")
    assert caught.value.errno == errno.ELOOP


def test_a_folder_is_made_when_somebody_looks_and_nobody_is_told() -> None:
    tree, made = Tree(), []

    def fill(here: Node, name: str) -> None:
        made.append(name)
        tree.file(here, "name", f"A40-{name}")

    tree.announce(tree.dir("types"), ["1Q", "2Q", "3Q"], fill)
    tree.take_stale()
    assert tree.find("types/2Q/name").path == "/types/2Q/name"
    assert made == ["2Q"]
    assert sorted(tree.find("types").entries) == ["1Q", "2Q", "3Q"]
    assert sorted(made) == ["1Q", "2Q", "3Q"]
    assert tree.take_stale() == []
    tree.remove(tree.find("types"))
    assert [one.path for one in tree.walk()] == [""]


def test_a_link_reads_as_the_kernel_writes_it() -> None:
    tree = Tree()
    device = tree.dir("sys/devices/pci0000:00/0000:00:02.0")
    bus = tree.dir("sys/bus/pci/devices")
    link = tree.link(bus, "0000:00:02.0", device)
    assert link.readlink() == "../../../devices/pci0000:00/0000:00:02.0"
    assert tree.link(device, "self", device).readlink() == "."
    assert tree.link(device, "up", bus).readlink() == "../../../bus/pci/devices"
