"""multinerf: https://github.com/google-research/multinerf, of August 2023.

Its own tests of coordinates, rendering, step functions and reflections, those that do not draw many thousand samples.
Stood in for: pictures and cameras (`cv2`, `rawpy`, `pycolmap`, `dm_pix`). Needs gin-config.
"""

import importlib

from modernize_projects.support import arrays_of_tests, stand_in

COMMIT = "5b4d4f6460"
EXPECTED = (
    (
        "out['render']['RenderTest.test_alpha_weights_finite_",
        "value",
        "gradients of weights near infinity in float32: 2e-5 of the value",
    ),
)
TESTS = {
    "coord": (
        "CoordTest.test_contract",
        "CoordTest.test_pos_enc",
        "CoordTest.test_construct_ray",
        "CoordTest.test_integrated",
    ),
    "render": ("RenderTest.test_conical_frustum_stable", "RenderTest.test_alpha", "RenderTest.test_lift"),
    "stepfun": (
        "StepFunTest.test_query",
        "StepFunTest.test_inner",
        "StepFunTest.test_max_dilate",
        "StepFunTest.test_resample_s",
    ),
    "ref_utils": ("RefUtilsTest.test_reflection",),
    "math": ("MathTest.test_learning", "MathTest.test_interp"),
}

for package in ("cv2", "rawpy", "pycolmap", "pycolmap.scene_manager", "dm_pix", "matplotlib", "matplotlib.cm"):
    stand_in(package)

out = {
    name: arrays_of_tests(importlib.import_module(f"tests.{name}_test"), *classes) for name, classes in TESTS.items()
}
