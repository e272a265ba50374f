"""A simulated nvidia-smi: prints what the real one prints, and does what it does.

Formats, messages and exit codes are those of the hardware notes (sections 5 and 6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from virtgpu.host.door import Completed
from virtgpu.sim import smi_text
from virtgpu.sim.modes import NvidiaRefused
from virtgpu.sim.profiles import Json

if TYPE_CHECKING:
    from virtgpu.sim.kernel import Kernel

_NO_DEVICES = Completed(6, "No devices were found\n", "")
_USAGE = Completed(2, "Invalid combination of input arguments. Please run 'nvidia-smi -h'.\n", "")


def nvidia_smi(kernel: Kernel, argv: Sequence[str]) -> Completed:
    """The answer to `nvidia-smi ARGV`."""
    devices: list[Json] = kernel.nvml_state()["devices"]
    arguments = list(argv)
    try:
        chosen = _chosen(devices, _take(arguments, "-i", "--id"))
        if not chosen:
            return _NO_DEVICES
        return _answer(kernel, arguments, chosen)
    except NvidiaRefused as error:
        return Completed(error.rc, f"{error.message}\n", "")


def _take(arguments: list[str], *names: str) -> str | None:
    """Take an option with its value out of the arguments."""
    for index, one in enumerate(arguments):
        name, equals, value = one.partition("=")
        if name in names:
            if equals:
                del arguments[index]
                return value
            found = arguments[index + 1] if index + 1 < len(arguments) else ""
            del arguments[index : index + 2]
            return found
    return None


def _chosen(devices: list[Json], wanted: str | None) -> list[Json]:
    """The GPUs by index, UUID or bus id in any spelling; all without one."""
    if wanted is None:
        return devices
    found = [
        one
        for part in wanted.split(",")
        for one in devices
        if part in (str(one["index"]), one.get("uuid")) or _is_bus_id(one, part)
    ]
    if not found:
        raise NvidiaRefused("No devices were found", 6)
    return found


def _is_bus_id(device: Json, text: str) -> bool:
    bus_id = str(device.get("pci_bus_id") or "").lower()
    domain, _, rest = bus_id.partition(":")
    given, _, tail = text.lower().partition(":")
    try:
        return bool(rest) and rest == tail and int(domain, 16) == int(given, 16)
    except ValueError:
        return False


def _answer(kernel: Kernel, arguments: list[str], devices: list[Json]) -> Completed:
    query = _take(arguments, "--query-gpu")
    if query is not None:
        style = _take(arguments, "--format") or "csv"
        return Completed(0, smi_text.csv(devices, query.split(","), style.split(",")), "")
    match arguments:
        case [] | ["-L"]:
            return Completed(0, smi_text.names(devices), "")
        case ["-q"]:
            return Completed(0, smi_text.details(devices), "")
        case ["-mig", mode]:
            return _mig_mode(kernel, devices, mode)
        case ["mig", *rest]:
            return _mig(kernel, devices, rest)
        case ["vgpu", *rest]:
            return _vgpu(kernel, devices, rest)
    return _USAGE


def address_of(device: Json) -> str:
    """The bus id of a device as sysfs spells it."""
    domain, _, rest = str(device["pci_bus_id"]).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


# -- MIG


def _mig_mode(kernel: Kernel, devices: list[Json], mode: str) -> Completed:
    if mode not in ("0", "1"):
        return _USAGE
    out, rc = "", 0
    for device in devices:
        bus_id = device["pci_bus_id"]
        try:
            kernel.set_mig_mode(address_of(device), mode == "1")
        except NvidiaRefused as error:
            # "pending" is a warning with status 0; the mode has not changed.
            tail = ":Not Supported" if error.rc == 3 else f":{error.message}"
            if "pending" in error.message:
                out += f"{error.message} for GPU {bus_id}:In use by another client\n"
            else:
                out, rc = f"{out}Unable to set MIG mode for GPU {bus_id}{tail}\n", error.rc
        else:
            out += f"{'Enabled' if mode == '1' else 'Disabled'} MIG Mode for GPU {bus_id}\n"
    return Completed(rc, f"{out}All done.\n" if rc == 0 else out, "")


def _mig(kernel: Kernel, devices: list[Json], rest: list[str]) -> Completed:
    is_on = [one for one in devices if (one.get("mig") or {}).get("current")]
    if not is_on:
        return Completed(6, "No MIG-enabled devices found.\n", "")
    gi = _take(rest, "-gi")
    with_ci = "-C" in rest
    made = _take(rest, "-cgi")
    listings = {
        "-lgip": smi_text.profiles,
        "-lgipp": smi_text.placements,
        "-lgi": smi_text.instances,
        "-lci": smi_text.compute_instances,
    }
    if made is not None:
        text = "".join(
            _create(kernel, one, part, with_ci) for one in is_on for part in made.split(",")
        )
        return Completed(0, text, "")
    for flag, listing in listings.items():
        if flag in rest:
            text = listing(is_on)
            # An empty card is no error of the card, and still no success of the tool.
            return Completed(6 if text.startswith("No ") else 0, text, "")
    for flag, act in (("-cci", _create_ci), ("-dci", _destroy_ci), ("-dgi", _destroy_gi)):
        if any(one == flag for one in rest):
            return Completed(0, "".join(act(kernel, one, gi) for one in is_on), "")
    return _USAGE


def _create(kernel: Kernel, device: Json, wanted: str, with_ci: bool) -> str:
    name, colon, start = wanted.partition(":")
    profile = next(
        (p for p in device["profiles"] if name in (str(p["id"]), p["name"], f"MIG {p['name']}")),
        None,
    )
    if profile is None:
        raise NvidiaRefused(f"Unable to find a GPU instance profile {name}: Not Found", 6)
    gpu = f"GPU {device['index']:>2}"
    try:
        gi_id = kernel.create_gi(
            address_of(device), profile["id"], int(start) if colon else None, with_ci
        )
    except NvidiaRefused as error:
        raise NvidiaRefused(
            f"Unable to create a GPU instance on {gpu} using profile {profile['id']}:"
            f" {error.message}\nFailed to create GPU instances: {error.message}",
            error.rc,
        ) from error
    label = f"MIG {profile['name']}"
    text = f"Successfully created GPU instance ID {gi_id:>2} on {gpu} using profile {label}"
    text += f" (ID {profile['id']:>2})\n"
    if with_ci:
        text += f"Successfully created compute instance ID  0 on {gpu} GPU instance ID {gi_id:>2}"
        text += f" using profile {label} (ID  0)\n"
    return text


def _create_ci(kernel: Kernel, device: Json, gi: str | None) -> str:
    text = ""
    for one in device["gi"]:
        if gi in (None, str(one["gi_id"])) and not one["ci"]:
            kernel.create_ci(address_of(device), one["gi_id"])
            text += f"Successfully created compute instance ID  0 on GPU {device['index']:>2}"
            text += f" GPU instance ID {one['gi_id']:>2}\n"
    return text


def _destroy_ci(kernel: Kernel, device: Json, gi: str | None) -> str:
    ids = _destroying(kernel.destroy_ci, "compute instances", device, gi)
    return "".join(
        f"Successfully destroyed compute instance ID  0 from GPU {device['index']:>2}"
        f" GPU instance ID {one:>2}\n"
        for one in ids
    )


def _destroy_gi(kernel: Kernel, device: Json, gi: str | None) -> str:
    ids = _destroying(kernel.destroy_gi, "GPU instances", device, gi)
    return "".join(
        f"Successfully destroyed GPU instance ID {one:>2} from GPU {device['index']:>2}\n"
        for one in ids
    )


def _destroying(
    act: Callable[[str, int | None], list[int]], what: str, device: Json, gi: str | None
) -> list[int]:
    try:
        return act(address_of(device), None if gi is None else int(gi))
    except NvidiaRefused as error:
        one = f" ID {int(gi):>2}" if gi is not None else "s"
        raise NvidiaRefused(
            f"Unable to destroy {what.removesuffix('s')}{one} from GPU {device['index']:>2}:"
            f" {error.message}\nFailed to destroy {what}: {error.message}",
            error.rc,
        ) from error


# -- vGPU


def _vgpu(kernel: Kernel, devices: list[Json], rest: list[str]) -> Completed:
    mode = _take(rest, "-shm")
    if mode is not None:
        return _mixed(kernel, devices, mode)
    if rest == ["-q"]:
        return Completed(0, smi_text.vgpus(devices), "")
    if rest[:1] in (["-s"], ["-c"]):
        return Completed(0, smi_text.types(devices, creatable=rest[0] == "-c"), "")
    return _USAGE if rest else Completed(0, smi_text.names(devices), "")


def _mixed(kernel: Kernel, devices: list[Json], mode: str) -> Completed:
    out = ""
    for device in devices:
        bus_id = device["pci_bus_id"]
        try:
            kernel.set_mixed(address_of(device), mode == "1")
        except NvidiaRefused as error:
            text = f"Unable to set vGPU heterogeneous mode for GPU {bus_id}: {error.message}\n"
            return Completed(error.rc, out + text, "")
        word = "Enabled" if mode == "1" else "Disabled"
        out += f"{word} vGPU heterogeneous mode for GPU {bus_id}\n"
    return Completed(0, out, "")
