"""objax: https://github.com/google/objax, of November 2022.

Its tests of `Jit`, of modules, `Parallel` on eight devices among them, and of optimizers. Written by hand in what was
rewritten: a class without instances for `ShardedDeviceArray`, of which JAX 0.4.13 makes none either, and `jax.Array` in
annotations. Stood in for: `tensorboard`. Needs parameterized, scipy and pillow.
"""

import importlib

from modernize_projects.support import arrays_of_tests, stand_in

COMMIT = "adc78469ae"
SELECT = ("replace_pmap",)
BY_HAND = (
    ("objax/functional/parallel.py", "jax.interpreters.pxla.ShardedDeviceArray", "jax.Array"),
    ("objax/util/check.py", "isinstance(array, jax.interpreters.pxla.ShardedDeviceArray)", "False"),
    ("objax/io/ops.py", "from jax.interpreters.pxla import ShardedDeviceArray", "class ShardedDeviceArray: ..."),
    ("objax/module.py", "from jax.interpreters.pxla import ShardedDeviceArray", "class ShardedDeviceArray: ..."),
    ("objax/typing.py", "from jax.interpreters.pxla import ShardedDeviceArray", "class ShardedDeviceArray: ..."),
    ("objax/util/util.py", "from jax.interpreters.pxla import ShardedDeviceArray", "class ShardedDeviceArray: ..."),
)
EXPECTED = (
    (
        "out['optimizer']['TestOptimizers.test_rastrigin_adam_override']",
        "value",
        "hundreds of steps of Adam in float32: rounding grows to 6e-5",
    ),
)
TESTS = ("jit", "module", "optimizer")

stand_in("tensorboard")

out = {}
for name in TESTS:
    module = importlib.import_module(f"tests.{name}")
    classes = [key for key, value in vars(module).items() if key.startswith("Test") and isinstance(value, type)]
    out[name] = arrays_of_tests(module, *classes)
