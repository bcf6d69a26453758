"""Choose a schedule: simulate all of them with the times of your own stages."""

import functools

import mmruntime as mm
from mmruntime import schedules
from pipeline import batch_of, first_state, mesh, train_step

# Without JAX, for equal stages: how long the order takes, and how many activations it holds.
for name in ("gpipe", "1f1b", "zb-h1", "zb-h2"):
    simulation = schedules.simulate(schedules.make(name, 2, 4))
    print(f"{name:6}  makespan {simulation.makespan:g}")

# With the times that your stages take here, searched for the best order.
step = mm.mjit(train_step, mesh=mesh)
measured = step.measure(first_state(), batch_of(0))
best = mm.mjit(functools.partial(train_step, schedule=measured.auto()), mesh=mesh)
state, loss = best(first_state(), batch_of(0))
print(best.explain().loops[0].choice.report)
