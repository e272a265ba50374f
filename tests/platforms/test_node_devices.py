"""libvirt's names of mediated devices, before and since 7.7."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trees import CASES
from virtgpu.platforms.node_devices import mdev_node

NAMES = json.loads((CASES / "L09.json").read_text())["names"]


@pytest.mark.parametrize("name", NAMES)
def test_l09_both_names_give_the_uuid_and_the_newer_one_the_parent(name: str) -> None:
    """https://bugs.launchpad.net/nova/+bug/1951656"""
    found = mdev_node(name)
    assert found is not None
    assert found._asdict() == NAMES[name]


@pytest.mark.parametrize("parent", ["matrix", "css_0_0_0026", "0000_3b_20_0", "0000_3b_00_9"])
def test_a_parent_that_is_no_pci_device_is_unknown(parent: str) -> None:
    found = mdev_node(f"mdev_4b200000_0000_4000_8000_000000005c01_{parent}")
    assert found == ("4b200000-0000-4000-8000-000000005c01", None)


@pytest.mark.parametrize(
    "name",
    [
        "pci_0000_3b_00_0",
        "mdev_types",
        "mdev_",
        "mdev_4b200000_0000_4000_8000_000000005c0",
        "mdev_4b200000_0000_4000_8000_000000005c01_",
        "mdev_4b200000_0000_4000_8000_000000005c01x",
        "net_eth0_52_54_00_00_00_01",
    ],
)
def test_any_other_device_is_none(name: str) -> None:
    assert mdev_node(name) is None


@given(name=st.text(max_size=80) | st.from_regex(r"mdev_[0-9a-f_]{0,60}"))
def test_no_name_is_an_error(name: str) -> None:
    mdev_node(name)
