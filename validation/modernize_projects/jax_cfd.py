"""jax-cfd: https://github.com/google/jax-cfd, of November 2022.

Its own tests of the grids, boundaries, interpolation, solvers, subgrid models and learned layers whose files were
rewritten, and four steps of the Navier-Stokes equations, in float64. Stood in for: `skimage`, which one test compares
with and is left out. Needs tree_math, dm-haiku, gin-config and scipy.
"""

import importlib

import jax
from modernize_projects.support import arrays_of_tests, stand_in

COMMIT = "62733e7abe"
# A keyword that NumPy has given up.
EDITS = (("jax_cfd/ml/layers_test.py", "np.reshape(input_values, newshape=shape)", "np.reshape(input_values, shape)"),)
TESTS = {
    "base.array_utils": (
        "ArrayUtilsTest.test_split",
        "ArrayUtilsTest.test_gram",
        "Interp1DTest.test_same_as_scipy_on_arrays",
    ),
    "base.grids": ("GridArrayTest", "GridArrayTensorTest", "GridTest"),
    "base.boundaries": ("ConstantBoundaryConditionsTest.test_pad_1d", "ConstantBoundaryConditionsTest.test_shift"),
    "base.fast_diagonalization": ("FastDiagonalizationTest.test_poisson",),
    "base.interpolation": ("PointInterpolationTest", "LaxWendroffInterpolationTest"),
    "base.subgrid_models": ("SubgridModelsTest.test_smagorinsky", "SubgridModelsTest.test_evm"),
    "ml.layers_util": ("ExtractPatchesTest", "PolynomialAccuracyCoefficientsTests"),
    "ml.layers": ("SpatialDerivativeTest", "RescaleToRangeTest"),
    "spectral.time_stepping": ("TimeSteppingTest",),
}

jax.config.update("jax_enable_x64", True)
for name in ("skimage", "skimage.measure", "tensorflow"):
    stand_in(name)


def flow():
    """Velocities of a random flow, at first and after four steps."""
    from jax_cfd.base import equations, funcutils, grids, initial_conditions

    grid = grids.Grid((16, 16), domain=((0, 6.0), (0, 6.0)))
    velocity = initial_conditions.filtered_velocity_field(jax.random.PRNGKey(0), grid, 2.0, 2)
    step = equations.semi_implicit_navier_stokes(density=1.0, viscosity=0.01, dt=0.01, grid=grid)
    moved = jax.jit(funcutils.repeated(step, steps=4))(velocity)
    return {"first": [u.data for u in velocity], "last": [u.data for u in moved]}


out = {
    name: arrays_of_tests(importlib.import_module(f"jax_cfd.{name}_test"), *classes) for name, classes in TESTS.items()
}
out["flow"] = flow()
