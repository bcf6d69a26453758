"""big_vision: https://github.com/google-research/big_vision, of March 2023.

Its own tests of optimizers and of trees, schedules and padded batches over eight devices, and logits and gradients of
its ViT. Stood in for: TensorFlow and its data sets, whose `test.TestCase` is unittest's here. Needs ml_collections.
"""

import importlib
import unittest

import jax
import jax.numpy as jnp
import numpy as np
from modernize_projects.support import arrays_of_tests, drawn_like, stand_in

COMMIT = "47ac2fd075"
SELECT = ("replace_pmap",)
TESTS = {
    "optax": ("OptaxTest",),
    "utils": ("PadShardUnpadTest", "TreeTest", "StepConversionTest", "CreateLearningRateScheduleTest"),
}


class TestCase(unittest.TestCase):
    """The assertions of TensorFlow's that these tests use."""

    def assertAllEqual(self, one, other):
        np.testing.assert_array_equal(one, other)

    def assertAllClose(self, one, other):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


stand_in("tensorflow", test=type("test", (), {"TestCase": TestCase, "main": None}))
for package in ("tensorflow_datasets", "tensorflow.io", "panopticapi", "tfds"):
    stand_in(package)
from big_vision.models import vit  # noqa: E402


def classified():
    """Logits and gradients of a model of two layers."""
    model = vit.Model(num_classes=3, patch_size=(4, 4), width=8, depth=2, mlp_dim=16, num_heads=2, pool_type="map")
    images = jnp.asarray(np.random.RandomState(0).normal(size=(2, 8, 8, 3)), "f")
    params = drawn_like(model.init(jax.random.PRNGKey(0), images)["params"])

    def loss(params):
        logits, parts = model.apply({"params": params}, images)
        return (logits**2).sum(), jax.tree_util.tree_leaves((logits, parts))

    (_, leaves), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return {"leaves": leaves, "gradients": jax.tree_util.tree_leaves(gradients)}


out = {
    name: arrays_of_tests(importlib.import_module(f"big_vision.{name}_test"), *classes)
    for name, classes in TESTS.items()
}
out["vit"] = classified()
