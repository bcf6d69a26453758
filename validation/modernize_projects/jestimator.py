"""jestimator: https://github.com/google-research/jestimator, of October 2023.

Its optimizer Amos on its own test, and for four steps of a matrix and a bias whose axes carry names, with shared
statistics by `amos_helper`. The other test takes 10,000 steps down Rosenbrock's function, on which rounding errors
grow without bound. Stood in for: T5X, seqio, TensorFlow.
"""

import jax
import jax.numpy as jnp
import numpy as np
from modernize_projects.support import arrays_of_tests, stand_in

COMMIT = "fa143d93e3"

for package in ("t5x", "seqio", "tensorflow", "flaxformer"):
    stand_in(package)
from jestimator import amos, amos_helper, amos_helper_test, amos_test  # noqa: E402

numbers = np.random.RandomState(0)
params = {"kernel": jnp.asarray(numbers.normal(size=(3, 4)), "f"), "bias": jnp.zeros(4)}
inputs, wanted = numbers.normal(size=(5, 3)).astype("f"), numbers.normal(size=(5, 4)).astype("f")
gradient = jax.grad(lambda params: ((jnp.tanh(inputs @ params["kernel"] + params["bias"]) - wanted) ** 2).mean())
optimizer = amos.amos(
    learning_rate=0.1,
    eta_fn=amos_helper.params_fn_from_assign_map({".*/?bias": 0.5, ".*": "sqrt(1 / SHAPE[-1])"}, eval_str_value=True),
    shape_fn=amos_helper.params_fn_from_assign_map({".*/?kernel": (1, 4), ".*": ()}),
    beta=0.9,
)
state = optimizer.init(params)
steps = []
for _ in range(4):
    updates, state = optimizer.update(gradient(params), state, params)
    params = jax.tree_util.tree_map(jnp.add, params, updates)
    steps.append(params)
out = {
    "tests": arrays_of_tests(amos_test, "AmosTest.test_parabola"),
    "helpers": arrays_of_tests(amos_helper_test, "AmosHelperTest"),
    "steps": steps,
    "state": jax.tree_util.tree_leaves(state),
}
