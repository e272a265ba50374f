"""The request grammar: what a guest wants.

[COUNT x] WHAT [@SCOPE] [on ADDRESS]

A40-12Q                       a vGPU type by its name, NVIDIA/GRID prefix or not
vf, vf:flex170                a plain virtual function (of that model)
mig:1g.10gb[+me|+gfx][/TYPE]  a MIG-backed vGPU with that GPU instance profile
gpu, gpu:A100                 a whole card
8G:Q                          any slice of that series with at least this much memory
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from virtgpu.errors import Usage
from virtgpu.model.pci import PciAddress

SCOPES = ("nvlink", "numa", "pcie")
SERIES = ("Q", "C", "B", "A")

_HINT = "for example A40-12Q, 8G:Q, vf, mig:1g.10gb, gpu, 4xgpu:A100@nvlink, 'gpu on 0000:51:00.0'"
_COUNT = re.compile(r"(\d+)\s*x\s*(?=\S)", re.ASCII)
_ON = re.compile(r"\s+on\s+(\S+)\s*\Z")
_SCOPE = re.compile(r"@(\w+)\s*\Z", re.ASCII)
_SIZE = re.compile(r"(\d+)\s*G(?:iB|B)?(?::([A-Za-z]+))?\Z", re.ASCII)
# Compiled when it is first used: most commands never do.
_MIG = r"(?ai)mig:([0-9]+g\.[0-9]+gb(?:\+[a-z.]+)*)(?:/(\S.*))?\Z"


class _What(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what can be asked for."""


class TypeRequest(_What, tag="type", tag_field="what", frozen=True):
    """A vGPU type by name; compared without the NVIDIA/GRID prefix and without case."""

    name: str

    def __str__(self) -> str:
        return self.name


class SizeRequest(_What, tag="size", tag_field="what", frozen=True):
    """Any slice with at least *gib* GiB of frame buffer, of *series* Q, C, B or A."""

    gib: int
    series: Literal["Q", "C", "B", "A"] | None = None

    def __str__(self) -> str:
        return f"{self.gib}G" + (f":{self.series}" if self.series else "")


class VfRequest(_What, tag="vf", tag_field="what", frozen=True):
    """A plain virtual function, of a model if given."""

    model: str | None = None

    def __str__(self) -> str:
        return "vf" + (f":{self.model}" if self.model else "")


class MigRequest(_What, tag="mig", tag_field="what", frozen=True):
    """A MIG-backed vGPU: the GPU instance profile as nvidia-smi names it without "MIG "."""

    profile: str
    type: str | None = None

    def __str__(self) -> str:
        return f"mig:{self.profile}" + (f"/{self.type}" if self.type else "")


class WholeRequest(_What, tag="gpu", tag_field="what", frozen=True):
    """A whole card, of a model if given."""

    model: str | None = None

    def __str__(self) -> str:
        return "gpu" + (f":{self.model}" if self.model else "")


What = TypeRequest | SizeRequest | VfRequest | MigRequest | WholeRequest


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one guest wants: *count* of *what*, near each other by *scope*, *on* one GPU or VF.

    >>> str(Request.parse("4 x gpu:A100 @nvlink"))
    '4xgpu:A100@nvlink'
    """

    what: What
    count: int = 1
    scope: Literal["nvlink", "numa", "pcie"] | None = None
    on: PciAddress | None = None

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read a request; raises `Usage` with the part that is wrong."""
        rest, on = _take_on(text.strip())
        rest, count = _take_count(rest)
        rest, scope = _take_scope(rest)
        return cls(what=_what(rest.strip(), text), count=count, scope=scope, on=on)

    def __str__(self) -> str:
        count = f"{self.count}x" if self.count != 1 else ""
        scope = f"@{self.scope}" if self.scope else ""
        on = f" on {self.on}" if self.on else ""
        return f"{count}{self.what}{scope}{on}"


def _take_on(text: str) -> tuple[str, PciAddress | None]:
    match = _ON.search(text)
    if match is None:
        if text.split()[-1:] == ["on"]:
            raise Usage(f"request {text!r}: on which GPU or VF?", hint=_HINT)
        return text, None
    return text[: match.start()], PciAddress.parse(match[1])


def _take_count(text: str) -> tuple[str, int]:
    match = _COUNT.match(text)
    if match is None:
        return text, 1
    count = int(match[1])
    if not 1 <= count <= 64:
        raise Usage(f"request {text!r}: count {match[1]} is not within 1 to 64", hint=_HINT)
    return text[match.end() :], count


def _take_scope(text: str) -> tuple[str, Literal["nvlink", "numa", "pcie"] | None]:
    match = _SCOPE.search(text)
    if match is None:
        return text, None
    for scope in ("nvlink", "numa", "pcie"):
        if match[1].lower() == scope:
            return text[: match.start()], scope
    raise Usage(f"scope @{match[1]} is not one of @nvlink, @numa, @pcie", hint=_HINT)


def _what(text: str, whole: str) -> What:
    if not text or not text.isprintable() or len(text) > 128:
        raise Usage(f"request {whole!r} names nothing", hint=_HINT)
    head, colon, tail = text.partition(":")
    if head.lower() in ("gpu", "vf") and (tail.strip() or not colon):
        kind = WholeRequest if head.lower() == "gpu" else VfRequest
        return kind(tail.strip() or None)
    if head.lower() == "mig" and colon:
        match = re.match(_MIG, text)
        if match is None:
            raise Usage(f"{text!r} is not a MIG request", hint="for example mig:1g.10gb+me")
        return MigRequest(match[1].lower(), match[2] and match[2].strip())
    size = _SIZE.match(text)
    if size is not None:
        return _size(int(size[1]), size[2], text)
    if colon:
        raise Usage(f"request {whole!r} cannot be read", hint=_HINT)
    return TypeRequest(text)


def _size(gib: int, series: str | None, text: str) -> SizeRequest:
    if not 1 <= gib <= 4096:
        raise Usage(f"{text!r}: {gib} GiB is not within 1 to 4096", hint=_HINT)
    if series is not None and series.upper() not in SERIES:
        raise Usage(
            f"{text!r}: series {series!r} is not one of Q, C, B, A",
            hint="Q workstation, C compute, B desktop, A apps; they differ in licence and CUDA",
        )
    return SizeRequest(gib, series.upper() if series else None)  # type: ignore[arg-type]
