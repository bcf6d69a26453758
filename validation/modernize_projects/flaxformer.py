"""flaxformer: https://github.com/google/flaxformer, of February 2023.

Its own tests of dense layers, embeddings, relative positions, layer norms, axis names, sharding constraints, BERT's
heads, and of attention with masks and caches. Stood in for: `aqt`, which quantizes, whose tests are left out, and
`seqio` and TensorFlow. Needs chex.
"""

import importlib

from modernize_projects.support import arrays_of_tests, stand_in

COMMIT = "66433ad6e4"
EXPECTED = (
    (
        "out['components.dense']['DenseTest.test_mlp_input",
        "a dict of other",
        "the test asks for a private name of Flax",
    ),
    (
        "out['components.embedding']['EmbeddingTest.test_add_position_embs_decoder']",
        "a dict of other",
        "NumPy 2 makes no uint32 of -1",
    ),
    (
        "out['components.layer_norm']['T5LayerNormTest.test_default_axis",
        "'passed'",
        "Flax gives dictionaries for frozen ones",
    ),
    (
        "out['components.attention.dense_attention']['AttentionTest.test_multiquery_dot_product_attention1",
        "value",
        "rounding in float32: 1.3e-5 of one value",
    ),
)
TESTS = {
    "sharding": ("ShardingTest",),
    "activation_partitioning": ("ActivationPartitioningTest",),
    "components.dense": (
        "DenseTest.test_dense",
        "DenseTest.test_mlp_same",
        "DenseTest.test_mlp_input",
        "DenseTest.test_fuse",
    ),
    "components.embedding": ("EmbedTest", "MultiEmbedTest", "EmbeddingTest", "RotaryTest"),
    "components.relative_position_biases": ("RelativePositionBiasesTest",),
    "components.layer_norm": ("T5LayerNormTest",),
    "components.attention.dense_attention": (
        "AttentionTest.test_self",
        "AttentionTest.test_make",
        "AttentionTest.test_multiquery_dot",
    ),
    "architectures.bert.heads": ("BertHeadsTest",),
}

for package in ("aqt.jax_legacy.jax", "seqio", "tensorflow", "tensorflow_datasets", "t5.data", "jestimator"):
    stand_in(package)
out = {
    name: arrays_of_tests(importlib.import_module(f"flaxformer.{name}_test"), *classes)
    for name, classes in TESTS.items()
}
