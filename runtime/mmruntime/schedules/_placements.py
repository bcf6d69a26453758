"""Placements of stages on submeshes."""


def v_placement(num_submeshes: int) -> tuple[int, ...]:
    """Stages 0 to p-1 on submeshes 0 to p-1 and stages p to 2p-1 on submeshes p-1 to 0."""
    return (*range(num_submeshes), *reversed(range(num_submeshes)))
