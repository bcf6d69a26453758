"""Save with Orbax, and go on from there: with other stages, or on one device."""

import os
import sys

import jax
import orbax.checkpoint as ocp

import mmruntime as mm
from pipeline import batch_of, first_state, mesh, train_step

folder = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "checkpoints")
step = mm.mjit(train_step, mesh=mesh)
shapes = jax.eval_shape(first_state)
step.plan(shapes, batch_of(0))
state = mm.mjit(first_state, out_like=step)()  # each array is made on its own stage

with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
    latest = manager.latest_step() or 0
    if latest:
        # The layout that the step wants now, whatever it was when the checkpoint was written.
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        state = manager.restore(latest, args=ocp.args.StandardRestore(like))
    for number in range(latest, latest + 2):
        state, loss = step(state, batch_of(number))
        print(f"step {number + 1}  loss {float(loss):.4f}")
    manager.save(latest + 2, args=ocp.args.StandardSave(state))
