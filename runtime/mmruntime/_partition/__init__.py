"""The passes between a trace and a list of instructions.

A function and the types of its arguments come in, a `Program` of instructions over numbered slots goes out. Elsewhere
a program is a `Segment`, the equations that are compiled as one, by its `ProgramSpec`. `_step/plan.py` calls the
passes, each of which changes none of its arguments, and has their order, in which `pipeline` cuts layers before it
orders programs. The folders, by what they import:

- `tracing`: flat equations, each with its task.
- `stacks`: arrays that hold the layers of several stages, as one array for each stage.
- `placement`: the submesh of every equation and every input.
- `programs`: the equations that are one program, and which values are kept between programs.
- `layouts`: how every value at a border lies on its submesh.
- `sums`: sums of gradients, put off or packed.
- `pipeline`: stages, their order, and the instructions.

A folder imports from those above it alone, but for `stacks`, which stands on `placement`.
"""
