"""alphafold: https://github.com/google-deepmind/alphafold, of December 2022.

Its own tests of atoms, quaternions, keys, layer stacks and lDDT, in float64. Needs dm-haiku, dm-tree and
ml_collections; stood in for: TensorFlow, Biopython.
"""

import importlib
import warnings

import jax
from modernize_projects.support import arrays_of_tests, stand_in

COMMIT = "420fb08fd5"

jax.config.update("jax_enable_x64", True)

# Of a test that gives it floats.
warnings.filterwarnings("ignore", message="jax.nn.one_hot input should be integer")
for package in ("tensorflow", "Bio", "Bio.PDB", "Bio.Data"):
    stand_in(package)
from alphafold.model import folding_multimer, modules, modules_multimer  # noqa: E402, F401  (they import)

TESTS = {
    "all_atom": ("AllAtomTest",),
    "quat_affine": ("QuatAffineTest",),
    "prng": ("PrngTest",),
    "layer_stack": ("LayerStackTest",),
    "lddt": ("LddtTest",),
}
out = {
    name: arrays_of_tests(importlib.import_module(f"alphafold.model.{name}_test"), *classes)
    for name, classes in TESTS.items()
}
