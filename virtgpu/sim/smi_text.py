"""What nvidia-smi prints, line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from virtgpu.sim.profiles import Json

_RULE = "+" + "-" * 77 + "+\n"


def _or_na(value: object) -> str:
    return "[N/A]" if value is None else str(value)


def _mode(device: Json, key: str) -> str | None:
    mode = device.get("mig")
    return None if mode is None else "Enabled" if mode[key] else "Disabled"


_FIELDS: dict[str, Callable[[Json], object]] = {
    "index": lambda one: one["index"],
    "name": lambda one: one.get("name"),
    "gpu_name": lambda one: one.get("name"),
    "uuid": lambda one: one.get("uuid"),
    "gpu_uuid": lambda one: one.get("uuid"),
    "pci.bus_id": lambda one: one.get("pci_bus_id"),
    "gpu_bus_id": lambda one: one.get("pci_bus_id"),
    "memory.total": lambda one: one.get("memory_total_mib"),
    "memory.used": lambda one: one.get("memory_used_mib"),
    "mig.mode.current": lambda one: _mode(one, "current"),
    "mig.mode.pending": lambda one: _mode(one, "pending"),
    "temperature.gpu": lambda one: one.get("temperature_c"),
}


def csv(devices: Iterable[Json], fields: Sequence[str], style: Sequence[str]) -> str:
    """`--query-gpu`: memory carries its unit unless `nounits` is asked for."""
    unknown = [name for name in fields if name.strip() not in _FIELDS]
    if unknown:
        return f'Field "{unknown[0]}" is not a valid field to query.\n'
    lines = [] if "noheader" in style else [", ".join(one.strip() for one in fields)]
    for device in devices:
        values = []
        for name in fields:
            value = _FIELDS[name.strip()](device)
            unit = " MiB" if name.strip().startswith("memory.") and "nounits" not in style else ""
            values.append(_or_na(value) + (unit if value is not None else ""))
        lines.append(", ".join(values))
    return "".join(f"{line}\n" for line in lines)


def names(devices: Iterable[Json]) -> str:
    """`-L`."""
    return "".join(f"GPU {one['index']}: {one['name']} (UUID: {one['uuid']})\n" for one in devices)


def details(devices: Sequence[Json]) -> str:
    """`-q`, the parts that tell about virtualization."""
    head = "\n==============NVSMI LOG==============\n\n"
    head += f"Attached GPUs                             : {len(devices)}\n"
    head += "vGPU Driver Capability\n        Heterogenous Multi-vGPU           : Supported\n"
    return head + "".join(_detail(one) for one in devices)


def _detail(device: Json) -> str:
    def plain(value: object) -> str:
        return "N/A" if value is None else str(value)

    return (
        f"GPU {device['pci_bus_id']}\n"
        f"    Product Name                          : {device['name']}\n"
        "    MIG Mode\n"
        f"        Current                           : {plain(_mode(device, 'current'))}\n"
        f"        Pending                           : {plain(_mode(device, 'pending'))}\n"
        "    GPU Virtualization Mode\n"
        f"        Virtualization Mode               : {plain(device.get('virtualization_mode'))}\n"
        f"        Host VGPU Mode                    : {plain(device.get('host_vgpu_mode'))}\n"
        "        vGPU Heterogeneous Mode           : "
        f"{plain(device.get('vgpu_heterogeneous_mode'))}\n"
        "    vGPU Device Capability\n"
        "        Fractional Multi-vGPU             : Supported\n"
    )


# -- MIG


def profiles(devices: Iterable[Json]) -> str:
    """`mig -lgip`: two lines for each profile."""
    text = _RULE + "| GPU instance profiles:" + " " * 54 + "|\n"
    text += "| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |\n"
    text += "|                              Free/Total   GiB              CE    JPEG  OFA  |\n"
    text += "|" + "=" * 77 + "|\n"
    for device in devices:
        for one in device["profiles"]:
            gib = one["memory_mib"] / 1024
            sm = one.get("sm") or 0
            text += (
                f"| {device['index']:>3}  {'MIG ' + one['name']:<18} {one['id']:>3}"
                f"     {one['free']}/{one['max']}        {gib:<10.2f} No   {sm:>4}"
                "     0     0   |\n"
                f"|{'':60}1     0     0   |\n"
            )
            text += _RULE
    return text


def placements(devices: Iterable[Json]) -> str:
    """`mig -lgipp`."""
    text = ""
    for device in devices:
        for one in device["profiles"]:
            word = "Placement " if len(one["starts"]) == 1 else "Placements"
            starts = ",".join(str(start) for start in one["starts"])
            text += f"GPU {device['index']:>2} Profile ID {one['id']:>2} {word}:"
            text += f" {{{starts}}}:{one['size']}\n"
    return text


def instances(devices: Sequence[Json]) -> str:
    """`mig -lgi`; a sentence when there is none."""
    rows = [(device, one) for device in devices for one in device["gi"]]
    if not rows:
        return "No GPU instances found: Not Found\n"
    text = "+" + "-" * 55 + "+\n| GPU instances:" + " " * 40 + "|\n"
    text += "| GPU   Name             Profile  Instance   Placement  |\n"
    text += "|                          ID       ID       Start:Size |\n|" + "=" * 55 + "|\n"
    for device, one in rows:
        place = f"{one['start']}:{one['size']}"
        text += f"| {device['index']:>3}  {_label(device, one):<18} {one['profile_id']:>4}"
        text += f"     {one['gi_id']:>4}     {place:>8}     |\n"
    return text + "+" + "-" * 55 + "+\n"


def compute_instances(devices: Sequence[Json]) -> str:
    """`mig -lci`; a sentence when there is none."""
    rows = [(device, one, ci) for device in devices for one in device["gi"] for ci in one["ci"]]
    if not rows:
        return "No compute instances found: Not Found\n"
    text = "+" + "-" * 68 + "+\n| Compute instances:" + " " * 49 + "|\n"
    text += "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
    text += "|       Instance                       ID        ID       Start:Size |\n"
    text += "|         ID                                                         |\n"
    text += "|" + "=" * 68 + "|\n"
    for device, one, ci in rows:
        text += f"| {device['index']:>3}   {one['gi_id']:>4}       {_label(device, one):<18}"
        text += f" {0:>3}      {ci:>4}          0:{_slices(device, one):<3}  |\n"
    return text + "+" + "-" * 68 + "+\n"


def _label(device: Json, instance: Json) -> str:
    found = [one["name"] for one in device["profiles"] if one["id"] == instance["profile_id"]]
    return f"MIG {found[0] if found else '?'}"


def _slices(device: Json, instance: Json) -> int:
    found = [one["slices"] for one in device["profiles"] if one["id"] == instance["profile_id"]]
    return int(found[0]) if found else 1


# -- vGPU


def vgpus(devices: Iterable[Json]) -> str:
    """`vgpu -q`."""
    text = ""
    for device in devices:
        text += f"GPU {device['pci_bus_id']}\n"
        text += f"    Active vGPUs                          : {len(device['vgpus'])}\n"
        kinds = {one["id"]: one["name"] for one in device["types"]}
        for number, one in enumerate(device["vgpus"], 1):
            gi = "N/A" if one["gi_id"] is None else one["gi_id"]
            place = "N/A" if one["placement_id"] is None else one["placement_id"]
            text += f"    vGPU ID                               : {3251634000 + number}\n"
            if one["mdev_uuid"]:
                text += f"        MDEV UUID                         : {one['mdev_uuid']}\n"
            text += f"        vGPU Name                         : {kinds.get(one['type_id'])}\n"
            text += f"        vGPU Type                         : {one['type_id']}\n"
            text += f"        GPU Instance ID                   : {gi}\n"
            text += f"        Placement ID                      : {place}\n"
    return text


def types(devices: Iterable[Json], *, creatable: bool) -> str:
    """`vgpu -s` and `vgpu -c`."""
    text = ""
    for device in devices:
        text += f"GPU {device['pci_bus_id']}\n"
        for one in device["types"]:
            if not creatable or one["id"] in device["creatable"]:
                text += f"    {one['name']}\n"
    return text
