"""See where the time of a step goes."""

import mmruntime as mm
from pipeline import batch_of, first_state, mesh, train_step

step = mm.mjit(train_step, mesh=mesh)
state, _ = step(first_state(), batch_of(0))

print(step.explain())  # programs, what each stage holds, transfers
for stage, cost in enumerate(step.measure(state, batch_of(1)).loops[0]):  # each program alone
    print(f"stage {stage}: forward {1e3 * cost.forward:.3f} ms, backward {1e3 * cost.backward_input:.3f} ms")

timeline = step.timeline(state, batch_of(1))  # one step as it ran
print(timeline)
timeline.save("timeline.html")  # beside its simulation
timeline.save("trace.json")  # for Perfetto or chrome://tracing
