"""NVML of the simulated machine, under the name of NVIDIA's module."""

import json
import sys

with open("/run/virtgpu-sim/package") as _file:
    sys.path.append(_file.read().strip())

from virtgpu.sim.nvml import Nvml, NVMLError


def __getattr__(name):
    with open("/sys/kernel/virtgpu_sim/nvml") as file:
        state = json.load(file)
    if not state["devices"] and name == "nvmlInit":
        raise NVMLError(9)  # the driver is not loaded
    return getattr(Nvml(state), name)
