"""Names of types and models: equal or not, never "nearly".

The only tolerance in a type's name is the prefix NVIDIA or GRID, the case of letters, and whole
words in front where that leaves one type of the host (`DC-3Q`). ME, NOME, MEALL and GFX are parts
of a name: a tool that stripped them made A100-1-5C of A100-1-5CME and said nothing
(https://github.com/NVIDIA/vgpu-device-manager/issues/212).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from virtgpu.inventory.names import parse_gi_profile
from virtgpu.model.gpu import Gpu, SliceType

_PREFIX = re.compile(r"(?:(?:nvidia|grid)\s+)+", re.IGNORECASE)
_SERIES = re.compile(r"-\d+([QCBA])\d*[A-Z]*\Z")
_TOKEN = re.compile(r"[a-z0-9]+")


@lru_cache(maxsize=1024)  # each card is held against the types of all others
def bare(name: str) -> str:
    """The name without its NVIDIA or GRID prefix and without case."""
    return _PREFIX.sub("", name.strip(), count=1).casefold()


def label(kind: SliceType) -> str:
    """What a person calls the type: its name, or its id where the driver gives no name."""
    return kind.name if kind.name is not None else kind.id


def is_called(kind: SliceType, name: str) -> bool:
    """Whether a person who writes *name* means this type."""
    return bare(label(kind)) == bare(name)


def meant(name: str, labels: Iterable[str]) -> tuple[str, ...]:
    """What *name* means of these: the one that is called so, else each that ends with its words.

    >>> meant("DC-3Q", ["NVIDIA RTX Pro 6000 Blackwell DC-3Q", "NVIDIA A40-3Q"])
    ('NVIDIA RTX Pro 6000 Blackwell DC-3Q',)
    """
    by_bare = {bare(label): label for label in labels}
    wanted = bare(name)
    if wanted in by_bare:
        return (by_bare[wanted],)
    return tuple(by_bare[one] for one in sorted(by_bare) if one.endswith(f" {wanted}"))


def near_profiles(profile: str, others: Iterable[str]) -> list[str]:
    """GPU instance profiles, those most like *profile* first: of as many slices, then by size."""
    wanted = parse_gi_profile(profile)

    def distance(name: str) -> tuple[object, ...]:
        parts = parse_gi_profile(name)
        if parts is None or wanted is None:
            return True, 0, 0, 0, name
        slices, size = abs(parts.slices - wanted.slices), abs(parts.gb - wanted.gb)
        return False, slices, size, parts.suffix != wanted.suffix, name

    return sorted(others, key=distance)


def close(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Names that look like *name*, the likest first; to show, never to take."""
    by_bare: dict[str, str] = {}
    for candidate in names:
        by_bare.setdefault(bare(candidate), candidate)
    from difflib import get_close_matches  # late: only a mistake needs it

    found = get_close_matches(bare(name), sorted(by_bare), n=5, cutoff=0.6)
    return tuple(by_bare[key] for key in found)


def series(name: str | None) -> str | None:
    """Q, C, B or A of an NVIDIA type's name, None where it shows none."""
    match = _SERIES.search(name or "")
    return match[1] if match else None


def family(name: str) -> str:
    """The name up to the size: `a40-` of NVIDIA A40-12Q."""
    return re.sub(r"\d+[qcba][a-z0-9]*\Z", "", bare(name))


def is_model(gpu: Gpu, model: str) -> bool:
    """Whether *model* is whole words of the GPU's name, or its device id.

    `A100` is a word of "NVIDIA A100-SXM4-80GB" and none of "NVIDIA A1000"; `flex170` are the
    words of "Data Center GPU Flex 170".
    """
    wanted = "".join(_TOKEN.findall(model.casefold()))
    ids = (gpu.device_id, f"{gpu.vendor_id}{gpu.device_id}", f"0x{gpu.device_id}")
    if not wanted or wanted in (text.casefold() for text in ids):
        return bool(wanted)
    names = (gpu.nvml.name if gpu.nvml else None, gpu.name)
    return any(wanted in _runs(name) for name in names if name)


def _runs(name: str) -> set[str]:
    tokens = _TOKEN.findall(name.casefold())
    spans = range(len(tokens))
    return {"".join(tokens[i : j + 1]) for i in spans for j in spans[i:]}


def model_of(gpu: Gpu) -> str:
    """What a person calls this GPU's model."""
    name = (gpu.nvml.name if gpu.nvml else None) or gpu.name
    return name or f"{gpu.vendor_id}:{gpu.device_id}"
