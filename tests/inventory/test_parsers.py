"""The parsers on what real systems print (sources in the hardware notes), and on anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtgpu.inventory import mdev, model_names, names, smi_text, topology, vendor_vfio
from virtgpu.inventory.reader import address, hex_id, number
from virtgpu.model.pci import PciAddress

DATA = Path(__file__).parent.parent / "data"


class TestCreatable:
    """Section 3 of the formats: an L40S dump, a host without header, and the user guide 17."""

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            (
                "ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n1156  : NVIDIA L40S-48Q\n",
                {"1145": "NVIDIA L40S-1B", "1156": "NVIDIA L40S-48Q"},
            ),
            ("1428 : NVIDIA H200X-141C\n", {"1428": "NVIDIA H200X-141C"}),
            ("NVIDIA A40-1Q 557\n", {"557": "NVIDIA A40-1Q"}),
            (
                "1519  : NVIDIA RTX Pro 6000 Blackwell DC-3Q\n",
                {"1519": "NVIDIA RTX Pro 6000 Blackwell DC-3Q"},
            ),
            ("ID    : vGPU Name\n", {}),
            ("", {}),
        ],
    )
    def test_every_spelling(self, text: str, found: dict[str, str]) -> None:
        assert vendor_vfio.parse_creatable(text) == found

    @pytest.mark.parametrize("line", ["what is this", "x : NVIDIA A40-1Q", "557 :", ": NVIDIA"])
    def test_any_other_line_is_named(self, line: str) -> None:
        with pytest.raises(ValueError, match=r".") as caught:
            vendor_vfio.parse_creatable(f"557 : NVIDIA A40-1Q\n{line}\n")
        assert str(caught.value) == line.strip()


class TestDescription:
    def test_nvidias_is_one_line_of_pairs(self) -> None:
        text = (
            "num_heads=4, frl_config=45, framebuffer=1024M, max_resolution=5120x2880,"
            " max_instance=16"
        )
        assert mdev.parse_description(text) == mdev.Description(1024, 16)

    def test_gvt_gs_says_nothing_that_is_asked(self) -> None:
        text = "low_gm_size: 64MB\nhigh_gm_size: 384MB\nfence: 4\nresolution: 1024x768\nweight: 2"
        assert mdev.parse_description(text) == mdev.Description(None, None)

    def test_none_is_none(self) -> None:
        assert mdev.parse_description(None) == mdev.Description()


def test_l09_both_names_of_a_node_device_give_its_uuid() -> None:
    """https://bugs.launchpad.net/nova/+bug/1951656"""
    cases = json.loads((DATA / "cases" / "L09.json").read_text())
    text = json.dumps(cases)
    assert "mdev_4b200000" in text
    old = mdev.parse_nodedev_name("mdev_4b200000_0000_4000_8000_000000005c01")
    new = mdev.parse_nodedev_name("mdev_4b200000_0000_4000_8000_000000005c01_0000_3b_00_0")
    far = mdev.parse_nodedev_name("mdev_4b200000_0000_4000_8000_000000005c01_10000_01_00_0")
    assert old is not None
    assert old.uuid == "4b200000-0000-4000-8000-000000005c01"
    assert old.parent is None
    assert new is not None
    assert (new.uuid, new.parent) == (old.uuid, "0000:3b:00.0")
    assert far is not None
    assert far.parent == "10000:01:00.0"


def test_a_types_name_says_its_nominal_size() -> None:
    """All 1206 types of NVIDIA's tables (driver 550.90.05 and 595.45.04)."""
    rows = json.loads((DATA / "vgpu-type-sizes.json").read_text())
    assert len(rows) == 1206
    for name, size, series, is_mig in rows:
        parts = names.parse_type(name)
        assert parts is not None, name
        assert (parts.framebuffer_mib, parts.series) == (size, series), name
        assert (parts.gi_slices is not None) == is_mig, name


class TestSmi:
    """Sections 5 and 6: Harvester's and cubecos' dumps."""

    def test_not_available_is_unknown(self) -> None:
        row = "00000000:08:00.0, 0, GPU-0a1b, 15356, [N/A], [N/A], [N/A], NVIDIA A2\n"
        (found,) = smi_text.parse_query(row)
        assert found.address == "0000:08:00.0"
        assert found.mig_current is None
        assert found.memory_used_mib is None

    @pytest.mark.parametrize(
        "text",
        ["No devices were found\n", "no devices were found\n", "Unable to determine the device\n"],
    )
    def test_a_sentence_is_no_row(self, text: str) -> None:
        assert smi_text.parse_query(text) == ()

    def test_both_spellings_of_heterogeneous(self) -> None:
        text = """
vGPU Driver Capability
        Heterogenous Multi-vGPU           : Supported
GPU 00000001:C8:00.0
    GPU Virtualization Mode
        Virtualization Mode               : Host VGPU
        Host VGPU Mode                    : SR-IOV
        vGPU Heterogeneous Mode           : Disabled
    vGPU Device Capability
        Heterogeneous Time-Slice Sizes    : Supported
"""
        modes = smi_text.parse_modes(text)[PciAddress("0001:c8:00.0")]
        assert modes.mixed_size is False
        assert modes.virtualization_mode == "Host VGPU"
        assert modes.host_vgpu_mode == "SR-IOV"

    def test_profiles_and_places(self) -> None:
        lgip = (
            "|   0  MIG 1g.5gb        19     7/7        4.75       No     14     0     0   |\n"
            "|                                                             1     0     0   |\n"
        )
        lgipp = "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1\n"
        (one,) = smi_text.parse_profiles(lgip, lgipp)[0]
        assert (one.id, one.name, one.free, one.max_instances) == (19, "1g.5gb", 7, 7)
        assert (one.starts, one.size, one.memory_mib) == ((0, 1, 2, 3, 4, 5, 6), 1, 4864)

    def test_a_single_place(self) -> None:
        lgip = "|   0  MIG 7g.40gb        0     1/1        39.25      No     98     5     0   |\n"
        (one,) = smi_text.parse_profiles(lgip, "GPU  0 Profile ID  0 Placement : {0}:8\n")[0]
        assert (one.starts, one.size) == ((0,), 8)

    def test_instances_with_and_without_compute_instances(self) -> None:
        lgi = "|   0  MIG 3g.47gb          9        1          0:4     |\n"
        lci = "|   0     13       MIG 1g.5gb           0         0          0:1     |\n"
        (one,) = smi_text.parse_instances(lgi, lci)[0]
        assert (one.id, one.profile_id, one.start, one.size) == (1, 9, 0, 4)
        assert one.compute_instances == ()

    def test_no_instances_is_no_error(self) -> None:
        assert smi_text.parse_instances("No GPU instances found: Not Found\n", "") == {}


class TestTopology:
    def test_memory_of_a_node(self) -> None:
        assert topology.parse_memory("Node 0 MemTotal:  263840556 kB\n") == 257656

    def test_distances(self) -> None:
        assert topology.parse_distances("10 21\n") == (10, 21)
        assert topology.parse_distances("10 x\n") == ()


def test_a_models_name_from_pci_ids() -> None:
    text = (
        "\n10de  NVIDIA Corporation\n\t2235  GA102GL [A40]\n\t\t10de 145a  A40\n"
        "\t2236  GA102GL [A10]\n1234  Other\n\t2237  Not NVIDIA's\n"
    )
    assert model_names.find(text, "10de", "2235") == "A40"
    assert model_names.find(text, "10de", "2237") is None


class TestSmallThings:
    @pytest.mark.parametrize("text", ["-1", "4294967295000000000000", "٣", "", None, "1 2"])
    def test_a_number_is_decimal_and_not_negative(self, text: str | None) -> None:
        assert number(text) is None

    @pytest.mark.parametrize("text", ["0x", "xyz", "0x123456789", "", None])
    def test_an_id_is_hexadecimal(self, text: str | None) -> None:
        assert hex_id(text) is None

    @pytest.mark.parametrize("text", ["0000:51:00.0", "10000:01:00.0", "abcdef01:ff:1f.7"])
    def test_a_directory_of_a_function(self, text: str) -> None:
        assert address(text) == text

    @pytest.mark.parametrize(
        "text", ["51:00.0", "0000:51:00.8", "0000:51:20.0", "0000:5G:00.0", "x", "0000:51:00.0 "]
    )
    def test_and_what_is_none(self, text: str) -> None:
        assert address(text) is None


_REAL = (
    "ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n",
    "num_heads=4, framebuffer=1024M, max_instance=16",
    "00000000:08:00.0, 0, GPU-0a1b, 15356, [N/A], Enabled, Disabled, NVIDIA A2\n",
    "|   0  MIG 1g.5gb        19     7/7        4.75       No     14     0     0   |\n",
    "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1\n",
    "Node 0 MemTotal:  263840556 kB\n",
    "mdev_4b200000_0000_4000_8000_000000005c01_0000_3b_00_0",
    "\n10de  NVIDIA\n\t2235  GA102GL [A40]\n",
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A real text with a piece replaced, or anything at all."""
    text = draw(st.sampled_from(_REAL))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, len(text)))
    return text[:start] + draw(st.text(max_size=12)) + text[end:]


@given(st.one_of(mutated(), st.text(), st.binary().map(lambda raw: raw.decode("utf-8", "replace"))))
def test_no_text_breaks_a_parser(text: str) -> None:
    mdev.parse_description(text)
    mdev.parse_nodedev_name(text)
    smi_text.parse_query(text)
    smi_text.parse_modes(text)
    smi_text.parse_profiles(text, text)
    smi_text.parse_instances(text, text)
    topology.parse_memory(text)
    topology.parse_distances(text)
    model_names.find(text, "10de", "2235")
    names.parse_type(text)
    names.parse_gi_profile(text)
    address(text)
    number(text)
    hex_id(text)
    try:
        vendor_vfio.parse_creatable(text)
    except ValueError as error:
        assert str(error)
