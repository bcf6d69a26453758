"""brax: https://github.com/google/brax, of October 2022.

Its own tests of running statistics, over eight devices too, replay buffers, geometry and rotations. Its trainers ask
JAX's internals whether they are traced, which JAX 0.4.13 does not answer any more. Needs protobuf before 4; stood in
for: `gym`, `pytinyrenderer`, `trimesh` and tensorboard.
"""

import importlib

from modernize_projects.support import arrays_of_tests, stand_in

COMMIT = "b3e75f9f0a"
SELECT = ("replace_pmap",)
# A class of tracers that is gone, and no array of JAX today: all tracers are `jnp.ndarray`.
BY_HAND = (("brax/jumpy.py", "(jnp.ndarray, jax.interpreters.batching.BatchTracer)", "jnp.ndarray"),)
TESTS = {
    "training.replay_buffers": ("QueueReplayTest",),
    "tests.running_statistics": ("RunningStatisticsTest",),
    "tests.math": ("RotateTest",),
    "tests.geometry": ("ClosestSegmentPointsTest",),
}

EXPECTED = (
    (
        "out['tests.running_statistics']['RunningStatisticsTest.test_denormalize']",
        "value",
        "a mean is taken off and added again in float32: 4e-6 for zero",
    ),
)
for package in ("gym", "pytinyrenderer", "trimesh", "tensorboardX", "tensorboard", "jinja2", "flask", "tensorflow"):
    stand_in(package)
out = {name: arrays_of_tests(importlib.import_module(f"brax.{name}_test"), *classes) for name, classes in TESTS.items()}
