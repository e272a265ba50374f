"""Plans in words, for people."""

from __future__ import annotations

from collections.abc import Iterator

from virtgpu.model import steps
from virtgpu.model.plan import Plan
from virtgpu.model.steps import Step


def describe(plan: Plan) -> str:
    """What will change, in order, and why this GPU."""
    lines = [plan.summary]
    lines += [f"  because {sentence}" for sentence in plan.why]
    lines += list(_numbered(plan))
    lines.append(
        "When a step fails, those before it are undone, the last one first."
        if plan.steps
        else "Nothing has to be done."
    )
    return "\n".join(lines)


def _numbered(plan: Plan) -> Iterator[str]:
    for number, step in enumerate(plan.steps, 1):
        yield f"  {number}. {describe_step(step)}"


def describe_step(step: Step) -> str:
    """One step in words."""
    match step:
        case steps.Reserve():
            one = step.reservation
            return f"reserve slice {one.id} for {one.guest or 'nobody yet'}"
        case steps.Release():
            return f"release slice {step.reservation.id}"
        case steps.BindDriver():
            return (
                f"bind {step.address} to {step.driver or 'no driver'}"
                f" (now {step.previous_driver or 'none'})"
            )
        case steps.SetVfs():
            verb = f"turn {step.count} VFs of" if step.count else "turn all VFs of"
            return f"{verb} {step.address} {'on' if step.count else 'off'} with {step.tool}"
        case steps.SetMigMode():
            return f"turn MIG mode of {step.address} {_on(step.enabled)}"
        case steps.SetMixedSize():
            return f"turn mixed-size mode of {step.address} {_on(step.enabled)}"
        case steps.CreateGpuInstance():
            return f"make GPU instance {step.profile} at slot {step.start} of {step.address}"
        case steps.DestroyGpuInstance():
            return f"destroy GPU instance {step.profile} at slot {step.start} of {step.address}"
    return _of_vgpu(step)


def _of_vgpu(step: Step) -> str:
    match step:
        case steps.CreateMdev():
            return f"make mdev {step.uuid}, {step.type_name or step.type_id}, on {step.parent}"
        case steps.RemoveMdev():
            return f"remove mdev {step.uuid} from {step.parent}"
        case steps.SetVgpuType():
            return f"make {step.type_name} on VF {step.vf} (type {step.type_id or 'by its name'})"
        case steps.ClearVgpuType():
            return f"clear {step.type_name} from VF {step.vf}"
        case steps.DefineDomain():
            return f"define guest {step.name} at {step.uri}"
        case steps.UndefineDomain():
            return f"undefine guest {step.name} at {step.uri}"
    return type(step).__name__


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"
