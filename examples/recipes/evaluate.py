"""Evaluate without leaving the devices of the pipeline."""

import jax

import mmruntime as mm
from pipeline import batch_of, first_state, loss_fn, mesh, train_step

step = mm.mjit(train_step, mesh=mesh)
state, _ = step(first_state(), batch_of(0))

# Another step on the same mesh takes the parameters where they are. It needs no microbatches: nothing is kept for a
# backward pass. With them, several stages work at a time.
evaluate = mm.mjit(loss_fn, mesh=mesh)
print(f"held-out loss {float(evaluate(state[0], batch_of(1))):.4f}")

# For code that you do not want to change: a copy in one place, as large as the whole model.
params = mm.gather(state[0])
print(f"the same on one device {float(jax.jit(loss_fn)(params, batch_of(1))):.4f}")
