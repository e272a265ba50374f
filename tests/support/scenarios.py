"""One scenario per mechanism: a profile, and a request that takes every kind of step there is.

Together they hold every step kind on hardware; a test says so.
"""

from __future__ import annotations

from typing import NamedTuple


class Scenario(NamedTuple):
    profile: str
    request: str
    mechanism: str


SCENARIOS = (
    Scenario("workstation-rtx4090", "gpu on 0000:01:00.0", "whole-card"),
    Scenario("dgx-a100-8x80gb", "2xgpu@pcie", "whole-card"),
    Scenario("intel-flex170", "vf", "plain-vf"),
    Scenario("intel-flex140x2-off", "vf", "plain-vf"),
    Scenario("intel-flex140x2-off", "3xvf on 0000:b2:00.0", "plain-vf"),
    Scenario("amd-v710", "vf", "plain-vf"),
    Scenario("pve-2xt4-mdev", "T4-4Q", "mdev-pf"),
    Scenario("intel-gvtg", "i915-GVTg_V5_8", "mdev-pf"),
    Scenario("a40x2-mdev-vf", "2xA40-12Q", "mdev-vf"),
    Scenario("a40x2-vendor-vfio", "A40-12Q", "vendor-vfio"),
    Scenario("l40s-x4-mixed", "L40S-48Q on 0000:a7:00.0", "vendor-vfio"),
    Scenario("h100x2-mig-vgpu", "mig:1g.10gb on 0000:1b:00.0", "mig-vgpu"),
    Scenario("h100x2-mig-vgpu", "mig:3g.40gb on 0000:43:00.0", "mig-vgpu"),
    Scenario("rtxpro6000-domain1", "RTX Pro 6000 Blackwell DC-1-24Q", "mig-vgpu"),
)
IDS = [f"{one.profile}:{one.request}" for one in SCENARIOS]
