"""What nvidia-smi says, where NVML itself is absent: the same facts, by PCI address."""

from __future__ import annotations

from virtgpu.host.door import Stuck
from virtgpu.inventory import smi_text
from virtgpu.inventory.reader import Reader
from virtgpu.inventory.vendor import Facts
from virtgpu.model.gpu import Mig, NvmlFacts
from virtgpu.model.pci import PciAddress

_TOOL = "nvidia-smi"
_DEADLINE_S = 20.0
# "No devices were found", on stdout: the driver has none, as where all are given to vfio-pci.
_NO_DEVICES = 6


def read(reader: Reader) -> dict[PciAddress, Facts]:
    """The facts of every GPU that nvidia-smi shows; none where there is no nvidia-smi."""
    tool = reader.door.which(_TOOL)
    if tool is None:
        return {}
    query = f"--query-gpu={','.join(smi_text.QUERY)}"
    answer = _ask(reader, tool, query, "--format=csv,noheader,nounits")
    rows = smi_text.parse_query(answer or "")
    if not rows:
        return {}
    modes = smi_text.parse_modes(_ask(reader, tool, "-q") or "")
    migs = _migs(reader, tool, rows)
    return {row.address: _facts(row, modes, migs) for row in rows}


def _ask(reader: Reader, tool: str, *arguments: str, silent: bool = False) -> str | None:
    what = " ".join((_TOOL, *arguments))
    try:
        done = reader.door.run((tool, *arguments), timeout_s=_DEADLINE_S)
    except Stuck as stuck:
        reader.warnings.append(f"{what} did not end within {_DEADLINE_S:.0f} s: {stuck}")
        return None
    except OSError as error:
        reader.warnings.append(f"cannot run {what}: {error.strerror}")
        return None
    if done.rc == 0:
        return done.stdout
    if done.rc != _NO_DEVICES and not silent:
        reader.warnings.append(f"{what} ended with {done.rc}")
    return None


def _migs(
    reader: Reader, tool: str, rows: tuple[smi_text.Row, ...]
) -> dict[PciAddress, Mig | None]:
    found: dict[PciAddress, Mig | None] = {}
    if any(row.mig_current for row in rows):
        # Listing none of them ends with an error: "No GPU instances found: Not Found".
        lgip, lgipp, lgi, lci = (
            _ask(reader, tool, "mig", what, silent=True) or ""
            for what in ("-lgip", "-lgipp", "-lgi", "-lci")
        )
        profiles = smi_text.parse_profiles(lgip, lgipp)
        instances = smi_text.parse_instances(lgi, lci)
    else:
        profiles, instances = {}, {}
    for row in rows:
        if row.mig_current is None:
            found[row.address] = None
            continue
        index = row.index if row.mig_current else None
        found[row.address] = Mig(
            current=row.mig_current,
            pending=bool(row.mig_pending),
            profiles=profiles.get(index, ()) if index is not None else (),
            instances=instances.get(index, ()) if index is not None else (),
        )
    return found


def _facts(
    row: smi_text.Row,
    modes: dict[PciAddress, smi_text.Modes],
    migs: dict[PciAddress, Mig | None],
) -> Facts:
    mode = modes.get(row.address, smi_text.Modes())
    return Facts(
        name=row.name,
        mixed_size=mode.mixed_size,
        nvml=NvmlFacts(
            index=row.index,
            name=row.name,
            uuid=row.uuid,
            memory_total_mib=row.memory_total_mib,
            memory_used_mib=row.memory_used_mib,
            virtualization_mode=mode.virtualization_mode,
            host_vgpu_mode=mode.host_vgpu_mode,
            mixed_size=mode.mixed_size,
            mig=migs.get(row.address),
        ),
    )
