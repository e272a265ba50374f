"""The files of a simulated kernel: directories, attributes and links, with what reading and
writing them does.

Both fronts walk the same nodes: the in-process door by path, the mounted one by node number.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator

ReadFile = Callable[[], str | bytes]
WriteFile = Callable[[str], None]
Fill = Callable[["Node", str], None]

_ATTRIBUTE_SIZE = 4096  # what sysfs says of every text attribute
_MOST_LINKS = 40  # MAXSYMLINKS of the kernel


def refuse(code: int, what: str = "") -> OSError:
    """The errno as the exception that both fronts turn into the kernel's answer."""
    return OSError(code, os.strerror(code), what)


class InUse(Exception):
    """The write must wait, as a kernel would make it wait, until a holder lets go."""


class Node:
    """A directory, an attribute file or a symbolic link.

    *read* and *write* are what the attribute does, None where it cannot. *write_at* takes bytes
    at an offset (only `config` has it). *waiting* are child directories that nobody has looked
    into yet; *fill* makes one. *is_exclusive*: one user at a time, as a VFIO group; *opened* is
    the access mode of the one who has it, None when nobody has.
    """

    def __init__(self, number: int, parent: Node | None, name: str, mode: int) -> None:
        self.number = number
        self.parent = parent
        self.name = name
        self.mode = mode
        self.children: dict[str, Node] | None = {} if stat.S_ISDIR(mode) else None
        self.waiting: dict[str, None] = {}
        self.fill: Fill | None = None
        self.target: Node | str | None = None
        self.read: ReadFile | None = None
        self.write: WriteFile | None = None
        self.write_at: Callable[[bytes, int], None] | None = None
        self.size = _ATTRIBUTE_SIZE
        self.is_alive = True
        self.is_exclusive = False
        self.opened: int | None = None

    @property
    def is_directory(self) -> bool:
        """Whether it has children."""
        return self.children is not None

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.mode)

    @property
    def entries(self) -> dict[str, Node]:
        """The children of a directory; raises ENOTDIR for anything else."""
        if self.children is None:
            raise refuse(errno.ENOTDIR, self.path)
        for name in tuple(self.waiting):
            self.child(name)
        return self.children

    def child(self, name: str) -> Node | None:
        """The child of that name; raises ENOTDIR for anything but a directory."""
        if self.children is None:
            raise refuse(errno.ENOTDIR, self.path)
        if name in self.waiting and self.fill is not None:
            del self.waiting[name]
            self.fill(self, name)
        return self.children.get(name)

    @property
    def path(self) -> str:
        """The path below the root, with a leading slash; empty for the root."""
        return "" if self.parent is None else f"{self.parent.path}/{self.name}"

    def readlink(self) -> str:
        """The text of a link, relative as the kernel writes it; EINVAL when it is none."""
        if isinstance(self.target, str):
            return self.target
        if self.target is None or self.parent is None:
            raise refuse(errno.EINVAL, self.path)
        return _relative(self.parent, self.target)


class Tree:
    """All nodes by number, and the (parent number, name) pairs that changed since last asked."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.stale: list[tuple[int, str]] = []
        self._next = 1
        self.root = self._new(None, "", stat.S_IFDIR | 0o755)
        # Directories by path, links followed. What appears changes none of them; what goes, any.
        self._found = {"": self.root}

    def _new(self, parent: Node | None, name: str, mode: int) -> Node:
        node = Node(self._next, parent, name, mode)
        self.nodes[self._next] = node
        self._next += 1
        if parent is not None:
            if parent.child(name) is not None or parent.children is None:
                raise ValueError(f"{node.path} exists already")
            parent.children[name] = node
            self.stale.append((parent.number, name))
        return node

    # -- building

    def dir(self, path: str, at: Node | None = None) -> Node:
        """The directory of that path, made with all above it where it is not there."""
        node = at or self.root
        for name in path.strip("/").split("/"):
            node = node.child(name) or self._new(node, name, stat.S_IFDIR | 0o755)
        return node

    def announce(self, parent: Node, names: Iterable[str], fill: Fill) -> None:
        """Directories that are there and are made when somebody looks; *fill* takes one of them
        and its name."""

        def make(parent: Node, name: str) -> None:
            # To those who could look, it has been there all along.
            known = len(self.stale)
            fill(self._new(parent, name, stat.S_IFDIR | 0o755), name)
            del self.stale[known:]

        parent.waiting, parent.fill = dict.fromkeys(names), make

    def file(
        self,
        parent: Node,
        name: str,
        read: ReadFile | str | None = None,
        write: WriteFile | None = None,
    ) -> Node:
        """An attribute. A *read* that is text gets its newline; *write* gets stripped text."""
        mode = (0o444 if read is not None else 0) | (0o200 if write else 0)
        node = self._new(parent, name, stat.S_IFREG | mode)
        node.read = _constant(f"{read}\n") if isinstance(read, str) else read
        node.write = write
        return node

    def link(self, parent: Node, name: str, target: Node | str) -> Node:
        """A symbolic link."""
        node = self._new(parent, name, stat.S_IFLNK | 0o777)
        node.target = target
        return node

    def remove(self, node: Node) -> None:
        """Take the node out with all below it; files still open then answer ENODEV."""
        for child in list((node.children or {}).values()):
            self.remove(child)
        node.is_alive, node.waiting = False, {}
        self._found = {"": self.root}
        if node.parent is not None:
            del node.parent.entries[node.name]
            self.stale.append((node.parent.number, node.name))

    def take_stale(self) -> list[tuple[int, str]]:
        """What changed since the last call."""
        stale, self.stale = self.stale, []
        return stale

    # -- walking

    def find(self, path: str, *, follow: bool = True) -> Node:
        """The node of a path below the root; links are followed within the tree.

        *follow* false: the last component is taken as it is. Raises ENOENT, ENOTDIR, ELOOP.
        """
        folder, _, name = path.strip("/").rpartition("/")
        return self._enter(self._folder(folder), name, iter(range(_MOST_LINKS)), follow=follow)

    def _folder(self, path: str) -> Node:
        """The directory of a path: by the longest beginning of it that is known."""
        known, rest = path, []
        while (node := self._found.get(known)) is None:
            known, _, name = known.rpartition("/")
            rest.append(name)
        links = iter(range(_MOST_LINKS))
        while rest:
            name = rest.pop()
            node = self._enter(node, name, links)
            known = f"{known}/{name}" if known else name
            self._found[known] = node
        return node

    def _enter(self, node: Node, name: str, links: Iterator[int], *, follow: bool = True) -> Node:
        """One component further; *links* ends after as many links as Linux follows."""
        if name in ("", "."):
            return node
        if name == "..":
            return node.parent or node
        child = node.child(name)
        if child is None:
            raise refuse(errno.ENOENT, name)
        while follow and child.is_link:
            if next(links, None) is None:
                raise refuse(errno.ELOOP, name)
            child = self._behind(child, links)
        return child

    def _behind(self, link: Node, links: Iterator[int]) -> Node:
        """What a link leads to: the node that it was made with, or by its text."""
        if isinstance(link.target, Node) and link.target.is_alive:
            return link.target
        text = link.readlink()
        node = self.root if text.startswith("/") else link.parent or self.root
        for name in text.split("/"):
            node = self._enter(node, name, links)
        return node

    def walk(self, node: Node | None = None) -> Iterator[Node]:
        """The node and everything below it, links not followed."""
        start = node or self.root
        yield start
        for child in list(start.entries.values() if start.is_directory else ()):
            yield from self.walk(child)


def _relative(start: Node, target: Node) -> str:
    """The way from a directory to a node, as the kernel writes it (kernfs_get_target_path)."""
    here, there = _lineage(start), _lineage(target)
    common = 0
    while common < min(len(here), len(there)) and here[common] is there[common]:
        common += 1
    up = [".."] * (len(here) - common)
    return "/".join((*up, *(one.name for one in there[common:]))) or "."


def _lineage(node: Node) -> list[Node]:
    """The root and all below it down to the node."""
    found = [node]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found[::-1]


def _constant(text: str) -> ReadFile:
    return lambda: text
