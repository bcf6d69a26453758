"""Find out how much memory each device needs, before there is a device: from shapes alone."""

import jax

import mmruntime as mm
from pipeline import batch_of, first_state, mesh, train_step

step = mm.mjit(train_step, mesh=mesh)
step.plan(*jax.eval_shape(lambda: (first_state(), batch_of(0))))  # compiles; allocates nothing
for row in step.explain().memory:
    print(f"submesh {row.submeshes[0]}: {row.held.total:,} bytes on each device, while this runs: {row.running}")
