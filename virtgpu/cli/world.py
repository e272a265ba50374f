"""The options that name a world: which host, which libvirt, which state, which output.

They are taken before the noun and after the verb alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from pathlib import Path

    from virtgpu.api import HostHandle

Command = TypeVar("Command", bound=Callable[..., Any])

OUTPUTS = ("table", "json", "yaml")
_OPTIONS = ("host", "connect", "state_dir", "output")


class World(NamedTuple):
    """What was chosen; None is the default."""

    host: str | None = None
    connect: str | None = None
    state_dir: str | None = None
    output: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> World:
        """The world of a command's options."""
        return cls(**{name: values.get(name) for name in _OPTIONS})

    def under(self, other: World) -> World:
        """This, where it says something, else the other."""
        return World(
            *(theirs if mine is None else mine for mine, theirs in zip(self, other, strict=True))
        )

    def handle(self) -> HostHandle:
        """The handle on that host."""
        from virtgpu.api import connect

        return connect(
            "local" if self.host is None else self.host,
            connect_uri=self.connect,
            state_dir=self.state_dir,
        )

    @property
    def format(self) -> str:
        """`table`, `json` or `yaml`."""
        return self.output or "table"

    @property
    def folder(self) -> Path:
        """The state directory."""
        from pathlib import Path

        from virtgpu.host.state import default_state_dir

        return default_state_dir() if self.state_dir is None else Path(self.state_dir)


def world_options(function: Command) -> Command:
    """Add the four options to a command."""
    decorated: Any = function
    for option in (
        click.option(
            "-o",
            "--output",
            type=click.Choice(OUTPUTS),
            envvar="VIRTGPU_OUTPUT",
            help="How results are printed; table is the default.",
        ),
        click.option(
            "--state-dir",
            metavar="FOLDER",
            envvar="VIRTGPU_STATE_DIR",
            help="Where reservations and journals are; /var/lib/virtgpu for root.",
        ),
        click.option(
            "--connect",
            metavar="URI",
            envvar="VIRTGPU_CONNECT",
            help="libvirt's URI; qemu:///system is the default.",
        ),
        click.option(
            "--host",
            metavar="HOST",
            envvar="VIRTGPU_HOST",
            help="local (the default), sim:PROFILE or sim:FILE.",
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


class Verb(click.Command):
    """A command that takes the world's options too, and gets a `World` as first argument."""

    def __init__(self, *args: Any, example: str | None = None, **kwargs: Any) -> None:
        if example is not None:
            kwargs["epilog"] = f"\b\nExample: {example}"
        super().__init__(*args, **kwargs)
        self.example = example
        shared: list[click.Option] = world_options(lambda: None).__click_params__  # type: ignore[attr-defined]
        for option in shared:
            option.envvar = None  # the environment is the weakest: only before the noun
        self.params += reversed(shared)

    def invoke(self, ctx: click.Context) -> Any:
        """Merge the options before the noun with those after the verb."""
        own = World.of({name: ctx.params.pop(name, None) for name in _OPTIONS})
        before = ctx.find_object(World) or World()
        ctx.params["world"] = own.under(before)
        return super().invoke(ctx)


def verb(group: click.Group, *, example: str, **settings: Any) -> Callable[[Command], Verb]:
    """Make a function the verb of a noun."""

    def decorate(function: Command) -> Verb:
        made = group.command(cls=Verb, example=example, **settings)(function)
        assert isinstance(made, Verb)
        return made

    return decorate
