"""gemma: https://github.com/google-deepmind/gemma, of November 2024. Nothing in it needed a rewrite.

Its own tests of layers, attention, blocks, caches and the whole transformer. Stood in for: `sentencepiece`.
"""

import importlib

from modernize_projects.support import arrays_of_tests, stand_in

COMMIT = "af38d6eb41"
JAX = "mid"

stand_in("sentencepiece")
TESTS = {
    "layers": ("EinsumTest",),
    "positional_embeddings": ("PositionalEmbeddingsTest",),
    "modules": ("EmbedderTest", "SlidingWindowTest", "AttentionTest", "FeedForwardTest", "BlockTest"),
    "transformer": ("TransformerTest.test_transformer", "TransformerTest.test_logit", "TransformerUtilsTest"),
}
out = {
    name: arrays_of_tests(importlib.import_module(f"gemma.{name}_test"), *classes) for name, classes in TESTS.items()
}
