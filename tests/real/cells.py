"""What each shipped profile can serve, by the kind of request; from the profiles' `expect`.

An empty list says that nothing is left there to give away, or that nothing can be given.
"""

from __future__ import annotations

CELLS: dict[str, list[str]] = {
    "a2-mdev-vf": [],  # its one vGPU has the whole frame buffer
    "a40x2-mdev-vf": ["A40-12Q", "8G:Q", "A40-48Q on 0000:ca:00.0", "2xA40-1Q on 0000:ca:00.0"],
    "a40x2-vendor-vfio": ["A40-12Q", "12G:C"],
    "amd-mi210": ["vf", "vf on 0000:c3:00.0", "2xvf"],
    "amd-v710": ["vf", "vf:v710"],
    "dgx-a100-8x80gb": ["gpu", "2xgpu@pcie", "gpu:A100 on 0000:bd:00.0"],
    "h100x2-mig-vgpu": ["mig:1g.10gb", "H100XM-2-20C", "mig:3g.40gb on 0000:43:00.0"],
    "hgx-h100-8x-mig": ["gpu on 0000:c3:00.0"],
    "intel-arc-pro-b50": ["vf"],
    "intel-flex140x2-off": ["gpu", "vf", "gpu:flex140 on 0000:b2:00.0"],
    "intel-flex170": ["vf", "vf:flex170"],
    "intel-gvtg": ["i915-GVTg_V5_8"],
    "jetson-orin": [],
    "l4-domain-10000": ["gpu on 0000:01:00.0"],
    "l40s-x4-mixed": ["L40S-8Q on 0000:a6:00.0", "L40S-12Q on 0000:26:00.0", "24G:Q"],
    "pve-2xt4-mdev": ["T4-4Q", "T4-16Q", "4G:Q", "gpu on 0000:3b:00.0"],
    "rtxpro6000-domain1": [
        "RTX Pro 6000 Blackwell DC-3Q",
        "mig:1g.24gb+gfx/RTX Pro 6000 Blackwell DC-1-24Q",
    ],
    "workstation-rtx4090": ["gpu on 0000:01:00.0"],
}
