"""JAX's notebook on distributed arrays, as it was in JAX 0.4.13: https://github.com/jax-ml/jax.

`docs/notebooks/Distributed_arrays_and_automatic_parallelization.ipynb`, cell by cell, and every array that a cell
binds. Sizes are cut from 8192 to 64. Left out: magics, the set-up of a Colab TPU, the pictures of shardings, and
`termcolor`, without which the three cells about errors stop, before and after.
"""

import json
import sys

import jax

COMMIT = "jax-v0.4.13"
PART = "docs/notebooks"
EXPECTED = (
    ("out['cell47']", "lies", "placed by a constraint to another mesh than its operand's, which JAX 0.10 replicates"),
    ("out['cell67']", "lies", "placed by the compiler: nothing is said about these results"),
    ("out['cell69']", "lies", "placed by the compiler: nothing is said about these results"),
)

jax.debug.visualize_array_sharding = lambda *args, **kwargs: None
with open("Distributed_arrays_and_automatic_parallelization.ipynb", encoding="utf-8") as file:
    cells = [cell for cell in json.load(file)["cells"] if cell["cell_type"] == "code"]
names = {"__name__": "notebook"}
out = {}
for number, cell in enumerate(cells, 1):
    lines = "".join(cell["source"]).splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!", "os.environ", "setup_tpu")))
    text = text.replace("8192", "64").replace("jax.tools.colab_tpu", "os")
    if "if len(jax.local_devices()) < 8" in text:
        continue
    before = {name: id(value) for name, value in names.items()}
    made = out[f"cell{number}"] = {}
    try:
        exec(compile(text, f"cell{number}", "exec"), names)
    except Exception as error:
        made["error"] = type(error).__name__
        print(f"cell {number}: {type(error).__name__}: {error}", file=sys.stderr)
    for name, value in names.items():
        if id(value) == before.get(name):
            continue
        if isinstance(value, jax.Array):
            made[name] = value
        elif isinstance(value, (list, tuple)) and value and all(isinstance(x, (jax.Array, tuple)) for x in value):
            made[name] = jax.tree_util.tree_leaves(value)
