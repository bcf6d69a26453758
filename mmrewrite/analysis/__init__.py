"""What codemods ask about a program, as `ast`: nothing here edits or prints.

A site or a module comes in, facts go out, or a refusal where a hint cannot be followed: its words stand where the fact
is looked for, as those about random keys in `steps.losses`. `steps` is about compiled functions, `loops` about layers
and microbatches, `meshes` about the mesh and the schedule, `objects` about what an expression may be an object of.
"""
