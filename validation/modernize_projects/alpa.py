"""alpa's tests of `pjit`: https://github.com/alpa-projects/alpa, `playground/jax_basic/test_pjit.py`.

Every function of the file, with sizes cut, and what arrays it had at its end. `test_xmap.py`, in the same folder, is
refused as a whole. Nothing is stood in for but two private names of JAX, which the file imports and a function that
fails on any JAX uses.
"""

import sys
import types

import jax
import jax._src.random
from modernize_projects.support import arrays_of

COMMIT = "b8078a9f75"
PART = "playground"
EDITS = (
    ("jax_basic/test_pjit.py", "D = 8192", "D = 64"),
    ("jax_basic/test_pjit.py", "K = 1 << 19", "K = 1 << 6"),
    ("jax_basic/test_pjit.py", "N = M = 1024", "N = M = 64"),
    ("jax_basic/test_pjit.py", "(512, 512, 16)", "(8, 8, 16)"),
)
EXPECTED = (
    ("out['test_dropout']['actual']", "value", "draws of `lax.rng_uniform`, which differ between versions of JAX"),
    ("out['test_random_bits']['actual']", "value", "draws of `lax.rng_uniform`, which differ between versions of JAX"),
)

for name in ("_random_bits", "threefry_2x32"):
    if not hasattr(jax._src.random, name):
        setattr(jax._src.random, name, None)
if jax.__version_info__ > (0, 5):
    jax.core.as_named_shape = lambda shape: types.SimpleNamespace(positional=shape)
sys.path.insert(0, "jax_basic")
import test_pjit  # noqa: E402

out = arrays_of(getattr(test_pjit, name) for name in sorted(dir(test_pjit)) if name.startswith("test_"))
