"""perceiver-ar: https://github.com/google-research/perceiver-ar, of September 2022.

Its own tests of the model, but for those of chunks and caches, which compile for minutes: positions, masks, and the
logits of the last latent. Stood in for: TensorFlow and its data sets. Needs dm-haiku.
"""

from modernize_projects.support import arrays_of_tests, stand_in

COMMIT = "cc756f5e43"

for package in ("tensorflow", "tensorflow_datasets", "seqio", "note_seq"):
    stand_in(package)
from perceiver_ar import perceiver_ar_model_test  # noqa: E402

TESTS = ("get_sequence", "truncate", "make_positions", "full", "initial", "partial", "last_latent")
out = arrays_of_tests(perceiver_ar_model_test, *(f"PerceiverARTest.test_{name}" for name in TESTS))
