"""The texts of the hints of a plan."""

from __future__ import annotations

from typing import Any

from mmrewrite.suggest.comparison import Suggested
from mmrewrite.suggest.model import PlanChoice
from mmrewrite.suggest.search import named


def mesh_axes(suggested: Suggested, choice: PlanChoice) -> str:
    """The axes of the mesh of a plan."""
    axes = {suggested.axis: choice.stages}
    if suggested.data_axis is not None and choice.data > 1:
        axes[suggested.data_axis] = choice.data
    if suggested.model_axis is not None and choice.model > 1:
        axes[suggested.model_axis] = choice.model
    return ", ".join(f"{name}={size}" for name, size in (axes | dict(suggested.held)).items())


def mesh_hint(suggested: Suggested, choice: PlanChoice) -> str:
    """The whole `mesh` and `axes`: today's axes, with the rows of a batch over the data axis if there is one."""
    pairs = dict(suggested.logical_axes)
    if suggested.row_name is not None and (choice.data > 1 or pairs.get(suggested.row_name) is not None):
        pairs[suggested.row_name] = suggested.data_axis if choice.data > 1 else None
    # Hints that cut layers are written for a plan that cuts them.
    if suggested.model_axis is not None and (choice.model > 1 or suggested.places is None):
        pairs |= dict.fromkeys(suggested.model_names, suggested.model_axis if choice.model > 1 else None)
    written = ", ".join(f"{name}={_device_axes(device)}" for name, device in pairs.items())
    return f"mesh({mesh_axes(suggested, choice)})" + (f"; axes({written})" if written else "")


def microbatch_arguments(choice: PlanChoice) -> tuple[str, str]:
    """The arguments of `microbatch` that a plan chooses: the number, which comes first, and the schedule."""
    bound = f', memory_bytes="{choice.memory_bytes // 2**20}MiB"' if choice.memory_bytes is not None else ""
    return f"count={choice.count}", f'schedule="{choice.schedule}"{bound}'


def stages_hint(choice: PlanChoice) -> str:
    """The `stages` of a plan."""
    arguments = []
    if choice.chunks > 1:
        arguments.append('placement="v"' if _is_v(choice) else f"chunks={choice.chunks}")
    if choice.by_cost:
        arguments.append('weights="auto"')
    return f"stages({', '.join(arguments)})" if arguments else "stages"


def _device_axes(device: Any) -> str:
    if isinstance(device, list):
        return f"({', '.join(map(_device_axes, device))}{',' if len(device) == 1 else ''})"
    return "None" if device is None else f'"{device}"'


def _is_v(choice: PlanChoice) -> bool:
    made = named(choice.schedule, choice.stages, choice.count, choice.chunks)
    return made is not None and choice.chunks == 2 and made.placement[choice.stages] == choice.stages - 1
