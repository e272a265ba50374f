"""GPUs that are no PCI device: shown, with the reason why no guest can have one."""

from __future__ import annotations

from virtgpu.host import paths
from virtgpu.inventory.reader import Reader
from virtgpu.model.gpu import PlatformGpu

_REASON = (
    "it is a platform device of the system on chip: no PCI function, no IOMMU group of its own,"
    " so it can be neither passed through nor sliced"
)


def read(reader: Reader) -> tuple[PlatformGpu, ...]:
    """The integrated GPU of a Jetson, by its device tree."""
    model = reader.text(paths.DEVICE_TREE_MODEL)
    if model is None:
        return ()
    compatible = reader.text(paths.DEVICE_TREE_COMPATIBLE) or ""
    model = model.strip("\0 \n")
    if "nvidia,tegra" not in compatible and not model.startswith("NVIDIA"):
        return ()
    return (PlatformGpu(name=f"GPU of {model}", reason=_REASON),)
