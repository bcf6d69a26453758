"""What codemods ask about a program, as `ast`: nothing here edits, refuses or prints.

A site or a module comes in, facts go out. `steps` is about compiled functions, `loops` about layers and microbatches,
`meshes` about the mesh and the schedule, `objects` about classes and the functions that code reaches. The files beside
these folders say what a program does around its steps that the mesh would change.
"""
