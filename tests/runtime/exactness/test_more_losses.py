"""Losses of the literature: what is proved of each and of its gradient, in numbers, or the line that is not exact."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.runtime.exactness.checking import assert_exact, case_of
from tests.runtime.exactness.losses import Losses, model

pytestmark = pytest.mark.family

LOSSES = Losses()
exact, mixed = LOSSES.exact, LOSSES.mixed
RNG = np.random.default_rng(0)
B, T, D = 6, 3, 4
PARAMS = {"w": RNG.normal(size=(D, D)), "v": RNG.normal(size=(D, D)), "scale": RNG.normal(size=D)}
BATCH = {
    "x": RNG.normal(size=(B, T, D)),
    "y": RNG.normal(size=(B, T, D)),
    "label": RNG.integers(0, D, size=(B, T)),
    "keep": RNG.random((B, T)) > 0.3,
    "weight": RNG.random(B) + 0.5,
    "domain": RNG.integers(0, 2, size=B),
}


def token_losses(p: Any, batch: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(model(p, batch["x"]), batch["label"])


# Classification.


@exact("mean")
def label_smoothing(p, batch):
    targets = optax.smooth_labels(jax.nn.one_hot(batch["label"], D), 0.1)
    return optax.softmax_cross_entropy(model(p, batch["x"]), targets).mean()


@exact("mean")
def focal(p, batch):
    one_hot = jax.nn.one_hot(batch["label"], D)
    return optax.sigmoid_focal_loss(model(p, batch["x"]), one_hot, alpha=0.25, gamma=2.0).mean()


@exact("sum")
def focal_by_hand_over_tokens(p, batch):
    logp = jax.nn.log_softmax(model(p, batch["x"]))
    chosen = jnp.take_along_axis(logp, batch["label"][..., None], -1)[..., 0]
    return (-((1 - jnp.exp(chosen)) ** 2) * chosen * batch["keep"]).sum() / batch["keep"].sum()


@exact("sum")
def z_loss_beside_tokens(p, batch):
    logits = model(p, batch["x"])
    log_z = jax.nn.logsumexp(logits, axis=-1)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]) + 1e-2 * log_z**2
    return jnp.where(batch["keep"], loss, 0).sum() / jnp.maximum(batch["keep"].sum(), 1)


@exact("sum")
def weights_by_token(p, batch):
    weights = batch["weight"][:, None] * batch["keep"]
    return jnp.sum(token_losses(p, batch) * weights) / jnp.sum(weights)


@exact("sum")
def weighted_average(p, batch):
    return jnp.average(token_losses(p, batch), weights=batch["keep"].astype(float))


@exact("mean")
def mean_by_sequence_then_over_the_batch(p, batch):
    keep = batch["keep"].astype(float)
    return ((token_losses(p, batch) * keep).sum(-1) / jnp.maximum(keep.sum(-1), 1)).mean()


@exact("mean")
def top_k_of_the_tokens_of_each(p, batch):
    return jax.lax.top_k(token_losses(p, batch), 2)[0].mean()


@exact("mean")
def soft_accuracy(p, batch):
    logits = model(p, batch["x"])
    correct = (jax.lax.top_k(logits, 2)[1] == batch["label"][..., None]).any(-1)
    return token_losses(p, batch).mean() + 0 * correct.mean()


@exact("mean")
def hinge(p, batch):
    signs = 2.0 * jax.nn.one_hot(batch["label"], D) - 1
    return optax.hinge_loss(model(p, batch["x"]), signs).mean(axis=(0, 1)).sum()


@exact("mean")
def multi_label(p, batch):
    return optax.sigmoid_binary_cross_entropy(model(p, batch["x"]), batch["y"] > 0).sum(-1).mean()


@exact("mean")
def poly_loss(p, batch):
    return optax.losses.poly_loss_cross_entropy(model(p, batch["x"]), jax.nn.one_hot(batch["label"], D)).mean()


@exact("sum")
def classes_weighted_by_their_numbers_in_the_batch(p, batch):
    counts = jax.nn.one_hot(batch["label"], D).sum((0, 1))
    weights = (counts.sum() / jnp.maximum(counts, 1))[batch["label"]]
    return (token_losses(p, batch) * weights).sum() / weights.sum()


@exact("mean")
def temperature_by_parameter(p, batch):
    logits = model(p, batch["x"]) / jax.nn.softplus(p["scale"].sum())
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


# Sequences.


@exact("mean")
def connectionist_temporal(p, batch):
    labels = jnp.maximum(batch["label"][:, :2], 1)
    padding = jnp.zeros((batch["x"].shape[0], T))
    return optax.ctc_loss(model(p, batch["x"]), padding, labels, jnp.zeros_like(labels, float)).mean()


@exact("sum")
def next_token(p, batch):
    logits, targets = model(p, batch["x"])[:, :-1], batch["label"][:, 1:]
    keep = batch["keep"][:, 1:]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return (loss * keep).sum() / keep.sum()


@exact("mean")
def padded_attention(p, batch):
    scores = jnp.einsum("btd,bsd->bts", batch["x"] @ p["w"], batch["x"])
    scores = jnp.where(batch["keep"][:, None, :], scores, -1e9)
    return ((jax.nn.softmax(scores) @ batch["x"] @ p["v"] - batch["y"]) ** 2).mean()


@exact("mean")
def attention_with_heads_causal(p, batch):
    q, k = ((batch["x"] @ p[name]).reshape(-1, T, 2, D // 2) for name in ("w", "v"))
    scores = jnp.where(jnp.tril(jnp.ones((T, T), bool)), jnp.einsum("bthd,bshd->bhts", q, k), -1e9)
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), batch["x"].reshape(-1, T, 2, D // 2))
    return (out.reshape(batch["x"].shape) * p["scale"]).mean()


@exact("mean")
def mapped_attention_of_one_example(p, batch):
    def one(x, keep):
        scores = jnp.where(keep, x @ p["w"] @ x.T, -1e9)
        return ((jax.nn.softmax(scores) @ x) ** 2).mean()

    return jax.vmap(one)(batch["x"], batch["keep"]).mean()


@exact("mean")
def rotary_positions(p, batch):
    angles = jnp.arange(T)[:, None] * 10.0 ** -jnp.arange(D // 2)
    x = (batch["x"] @ p["w"]).reshape(-1, T, 2, D // 2)
    turned = jnp.stack([x[:, :, 0] * jnp.cos(angles) - x[:, :, 1] * jnp.sin(angles), x[:, :, 1]], axis=2)
    return (turned**2).mean()


@exact("mean")
def dynamic_time_steps(p, batch):
    lengths = batch["keep"].sum(-1)

    def step(h, t):
        new = jnp.tanh(h @ p["w"] + batch["x"][:, t])
        return jnp.where((t < lengths)[:, None], new, h), None

    h, _ = jax.lax.scan(step, jnp.zeros((batch["x"].shape[0], D)), jnp.arange(T))
    return (h**2).mean()


# Several networks, teachers, experts.


@exact("mean")
def distillation(p, batch):
    teacher = jax.lax.stop_gradient(jax.nn.softmax(model(p, batch["y"])))
    return (optax.softmax_cross_entropy(model(p, batch["x"]), teacher) * 0.5 + token_losses(p, batch)).mean()


@exact("mean")
def divergence_from_a_prior(p, batch):
    mean, log_var = batch["x"] @ p["w"], batch["x"] @ p["v"]
    kl = 0.5 * (jnp.exp(log_var) + mean**2 - 1 - log_var).sum((-1, -2))
    return (((mean - batch["y"]) ** 2).sum((-1, -2)) + kl).mean()


@exact("mean")
def generator_and_discriminator(p, batch):
    fake, real = model(p, batch["x"]).mean((1, 2)), batch["y"].mean((1, 2)) * p["scale"].sum()
    return optax.sigmoid_binary_cross_entropy(fake, jnp.zeros_like(fake)).mean() + jax.nn.softplus(-real).mean()


@exact("mean")
def critic(p, batch):
    return model(p, batch["x"]).mean() - model(p, batch["y"]).mean() + 1e-2 * sum((w**2).sum() for w in p.values())


@exact("mean")
def gradient_penalty_of_each(p, batch):
    gradients = jax.vmap(jax.grad(lambda x: model(p, x).sum()))(batch["x"])
    norms = jnp.sqrt((gradients**2).sum((1, 2)) + 1e-9)
    return ((norms - 1) ** 2).mean() + token_losses(p, batch).mean()


@exact("mean")
def hessian_vector_product(p, batch):
    def inner(w):
        return (jnp.tanh(batch["x"] @ w) ** 2).mean()

    product = jax.jvp(jax.grad(inner), (p["w"],), (jnp.ones_like(p["w"]),))[1]
    return (product * jax.lax.stop_gradient(p["v"])).sum()


@exact("mean")
def laplacian_of_each(p, batch):
    def trace(x):
        return jnp.trace(jax.hessian(lambda x: jnp.tanh(x @ p["w"]).sum())(x))

    return (jax.vmap(jax.vmap(trace))(batch["x"]) ** 2).mean()


@exact("mean")
def jacobian_penalty(p, batch):
    return (jax.vmap(jax.jacfwd(lambda x: jnp.tanh(x @ p["w"])))(batch["x"][:, 0]) ** 2).sum((1, 2)).mean()


@exact("mean")
def experts_by_dense_routing(p, batch):
    gates = jax.nn.softmax(batch["x"] @ p["w"])
    experts = jnp.stack([batch["x"] @ p["v"], batch["x"] * p["scale"], jnp.sin(batch["x"]), batch["x"]], axis=-2)
    return (((gates[..., None] * experts).sum(-2) - batch["y"]) ** 2).mean()


@exact("mean")
def importance_of_experts_by_example(p, batch):
    gates = jax.nn.softmax(batch["x"] @ p["w"])
    importance = gates.mean(axis=1)
    return ((importance * D - 1) ** 2).mean() + token_losses(p, batch).mean()


@exact("mean")
def policy_gradient(p, batch):
    logp = jnp.take_along_axis(jax.nn.log_softmax(model(p, batch["x"])), batch["label"][..., None], -1)[..., 0]
    returns = jnp.cumsum(batch["y"][:, ::-1, 0], axis=1)[:, ::-1]
    return -(logp * jax.lax.stop_gradient(returns)).mean()


@exact("sum")
def advantages_standardised_over_the_batch(p, batch):
    logp = jnp.take_along_axis(jax.nn.log_softmax(model(p, batch["x"])), batch["label"][..., None], -1)[..., 0]
    reward = batch["y"][..., 0]
    advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
    return -(logp * advantage).sum()


@exact("mean")
def clipped_ratio(p, batch):
    logp = jnp.take_along_axis(jax.nn.log_softmax(model(p, batch["x"])), batch["label"][..., None], -1)[..., 0]
    ratio = jnp.exp(logp - jax.lax.stop_gradient(logp) + 0.1)
    advantage = batch["y"][..., 0]
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()


@exact("mean")
def preferences(p, batch):
    chosen, rejected = (model(p, batch[name]).sum((1, 2)) for name in ("x", "y"))
    return -jax.nn.log_sigmoid(chosen - rejected).mean()


@exact("mean")
def triplets(p, batch):
    z = model(p, batch["x"])
    near, far = ((z[:, 0] - z[:, k]) ** 2 for k in (1, 2))
    return jax.nn.relu(near.sum(-1) - far.sum(-1) + 1).mean()


@exact("mean")
def cosine(p, batch):
    return optax.cosine_distance(model(p, batch["x"]), batch["y"], epsilon=1e-8).mean()


@exact("mean")
def quantiles(p, batch):
    error = batch["y"] - model(p, batch["x"])
    return jnp.maximum(0.9 * error, -0.1 * error).mean()


@exact("sum")
def sums_by_domain(p, batch):
    by_domain = jax.ops.segment_sum(token_losses(p, batch).sum(-1), batch["domain"], 2)
    counts = jax.ops.segment_sum(jnp.ones_like(batch["weight"]), batch["domain"], 2)
    return (by_domain / jnp.maximum(counts, 1)).sum()


@exact("mean")
def normalised_by_group(p, batch):
    z = model(p, batch["x"]).reshape(-1, T, 2, D // 2)
    z = (z - z.mean((1, 3), keepdims=True)) * jax.lax.rsqrt(z.var((1, 3), keepdims=True) + 1e-5)
    return ((z.reshape(batch["x"].shape) * p["scale"] - batch["y"]) ** 2).mean()


@exact("mean")
def root_mean_square_norm(p, batch):
    z = model(p, batch["x"])
    return ((z * jax.lax.rsqrt((z**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] - batch["y"]) ** 2).mean()


@jax.custom_vjp
def reversed_gradient(x):
    return x


reversed_gradient.defvjp(lambda x: (x, None), lambda _, g: (-0.1 * g,))


@exact("mean")
def gradient_reversal(p, batch):
    logit = reversed_gradient(model(p, batch["x"])).mean((1, 2))
    return optax.sigmoid_binary_cross_entropy(logit, batch["domain"].astype(float)).mean()


@jax.custom_vjp
def straight_through(x):
    return jnp.round(x)


straight_through.defvjp(lambda x: (jnp.round(x), jnp.abs(x) < 1), lambda mask, g: (g * mask,))


@exact("mean")
def quantised(p, batch):
    return ((straight_through(model(p, batch["x"])) - batch["y"]) ** 2).mean()


@exact("mean")
def codebook(p, batch):
    z = batch["x"] @ p["w"]
    distances = ((z[..., None, :] - p["v"]) ** 2).sum(-1)
    code = p["v"][jnp.argmin(distances, -1)]
    commit = ((jax.lax.stop_gradient(code) - z) ** 2).mean() + ((code - jax.lax.stop_gradient(z)) ** 2).mean()
    return commit + ((z + jax.lax.stop_gradient(code - z) - batch["y"]) ** 2).mean()


@exact("mean")
def denoising_by_levels_of_the_batch(p, batch):
    level = batch["weight"][:, None, None] / 2
    noisy = jnp.sqrt(1 - level**2) * batch["x"] + level * batch["y"]
    return (((model(p, noisy) - batch["y"]) ** 2).mean((1, 2)) / batch["weight"]).mean()


@exact("mean")
def spectrum(p, batch):
    return (jnp.abs(jnp.fft.rfft(model(p, batch["x"]), axis=1)) ** 2).mean()


@exact("mean")
def tokens_beside_decay_beside_a_mean(p, batch):
    tokens = (token_losses(p, batch) * batch["keep"]).sum() / batch["keep"].sum()
    return tokens + 0.1 * (model(p, batch["x"]) ** 2).mean() + 1e-2 * (p["scale"] ** 2).sum()


@exact("sum")
def negatives_of_a_rebound_mask(p, batch):
    mask = ~batch["keep"]
    mask = mask & (batch["label"] > 0)
    mask = mask.astype(float)
    mask *= 1 / jnp.maximum(mask.sum(), 1)
    return jnp.einsum("bt,bt->", token_losses(p, batch), mask)


@exact("mean")
def branches_by_layer(p, batch):
    def layer(x, index):
        return jax.lax.switch(index, [lambda x: jnp.tanh(x @ p["w"]), lambda x: x * p["scale"]], x), None

    z, _ = jax.lax.scan(layer, batch["x"], jnp.array([0, 1, 0]))
    return ((z - batch["y"]) ** 2).mean()


@exact("mean")
def gradient_of_an_inner_step_for_each_task(p, batch):
    def adapted(x, y):
        inner = jax.grad(lambda w: ((x @ w - y) ** 2).mean())(p["w"])
        return ((x @ (p["w"] - 0.1 * inner) - y) ** 2).mean()

    return jax.vmap(adapted)(batch["x"], batch["y"]).mean()


# What examples do to each other.


@mixed
def in_batch_negatives(p, batch):
    one, other = (model(p, batch[name]).mean(1) for name in ("x", "y"))
    similarities = one @ other.T  # here
    return optax.softmax_cross_entropy_with_integer_labels(similarities, jnp.arange(len(one))).mean()


@mixed
def positives_of_a_queue_by_position(p, batch):
    one = model(p, batch["x"]).mean(1)
    similarities = one @ jnp.sin(jnp.arange(4.0 * B).reshape(D, B))
    own = jnp.arange(len(one))
    return (jax.nn.logsumexp(similarities, axis=1) - similarities[own, own]).mean()  # here


@mixed
def negatives_of_a_queue_without_what_has_the_position(p, batch):
    similarities = model(p, batch["x"]).mean(1) @ jnp.sin(jnp.arange(4.0 * B).reshape(D, B))
    own = jnp.arange(len(similarities))
    return jax.nn.logsumexp(similarities.at[own, own].set(-9.0), axis=1).mean()  # here


@mixed
def load_balance_of_experts(p, batch):
    gates = jax.nn.softmax(batch["x"] @ p["w"])
    share = jax.nn.one_hot(gates.argmax(-1), D).mean((0, 1))
    return (share * gates.mean((0, 1))).sum()  # here


@mixed
def redundancy_reduction(p, batch):
    z = model(p, batch["x"]).mean(1)
    z = (z - z.mean(0)) / z.std(0)  # here
    return ((z.T @ z - jnp.eye(D)) ** 2).sum()


@mixed
def dice_of_the_batch(p, batch):
    score = jax.nn.sigmoid(model(p, batch["x"]))
    target = batch["y"] > 0
    return 1 - 2 * (score * target).sum() / (score.sum() + target.sum())  # here


@mixed
def correlation(p, batch):
    z, y = model(p, batch["x"]).mean((1, 2)), batch["y"].mean((1, 2))
    z = z - z.mean()  # here
    return -(z * y).sum() / jnp.linalg.norm(z)


@mixed
def mean_discrepancy_of_domains(p, batch):
    z = model(p, batch["x"]).mean(1)
    one, other = (jnp.where(batch["domain"][:, None] == k, z, 0).mean(0) for k in (0, 1))
    return ((one - other) ** 2).sum()  # here


@mixed
def pairwise_ranking(p, batch):
    score = model(p, batch["x"]).mean((1, 2))
    return jax.nn.softplus(score[:, None] - score[None, :]).mean()  # here


@mixed
def shuffled_negatives(p, batch):
    z = model(p, batch["x"])
    return (z * z[::-1]).mean()  # here


@mixed
def mixup(p, batch):
    z = 0.7 * batch["x"] @ p["w"] + 0.3 * jnp.roll(batch["x"] @ p["w"], 1, axis=0)  # here
    return ((z - batch["y"]) ** 2).mean()


@mixed
def advantages_standardised_by_parameters(p, batch):
    value = model(p, batch["x"]).mean((1, 2))
    return (((value - value.mean()) / (value.std() + 1e-8)) * batch["weight"]).mean()  # here


@mixed
def worst_group(p, batch):
    by_domain = jax.ops.segment_sum(token_losses(p, batch).mean(-1), batch["domain"], 2)
    return by_domain.max()  # here


@mixed
def tokens_that_the_model_chooses(p, batch):
    losses = token_losses(p, batch)
    hard = (losses > 1.0).astype(float)
    return (losses * hard).sum() / hard.sum()  # here


@pytest.mark.parametrize("name", LOSSES.proved)
def test_exact(name: str) -> None:
    expected = LOSSES.proved[name]
    case = case_of(jax.value_and_grad(expected.loss), (PARAMS, BATCH), num_microbatches=3)
    assert case.proof.is_exact, [verdict.reason for verdict in case.proof.verdicts]
    assert case.words[0] == expected.word
    assert_exact(case)


@pytest.mark.parametrize("name", LOSSES.unproved)
def test_mixed(name: str) -> None:
    case = case_of(jax.value_and_grad(LOSSES.unproved[name]), (PARAMS, BATCH), num_microbatches=3)
    verdict = case.proof.verdicts[0]
    lines, first = inspect.getsourcelines(LOSSES.unproved[name])
    (here,) = [first + number for number, line in enumerate(lines) if "# here" in line]
    assert verdict.kind == "mixed"
    assert verdict.reason is not None
    assert verdict.reason.line.startswith(f"{__file__}:{here} "), verdict.reason
    assert_exact(case)


def test_a_count_inside_of_a_loop_is_to_be_computed_before_it() -> None:
    def loss(p: Any, batch: Any, *, before: bool) -> Any:
        keep = batch["keep"].T.astype(float)
        counts = keep.sum(axis=1) if before else jnp.zeros(T)

        def step(h: Any, at: Any) -> Any:
            x, mask, count = at
            h = jnp.tanh(h @ p["w"] + x)
            return h, (h.sum(-1) * mask).sum() / (count if before else mask.sum())  # here

        start = jnp.zeros((batch["x"].shape[0], D))
        return jax.lax.scan(step, start, (jnp.moveaxis(batch["x"], 1, 0), keep, counts))[1].sum()

    inside = case_of(lambda p, b: loss(p, b, before=False), (PARAMS, BATCH), num_microbatches=3)
    (verdict,) = inside.proof.verdicts
    assert verdict.reason is not None
    assert "compute it before the loop" in verdict.reason.advice
    case = case_of(jax.value_and_grad(lambda p, b: loss(p, b, before=True)), (PARAMS, BATCH), num_microbatches=3)
    assert case.words[0] == "sum"
    assert_exact(case)


def test_each_call_of_a_compiled_function_has_hoisted_values_of_its_own() -> None:
    @jax.jit
    def masked_mean(losses: Any, mask: Any) -> Any:
        at = jnp.arange(losses.shape[0], dtype=losses.dtype)[:, None]
        return (losses * mask * jnp.cos(at)).sum() / mask.sum()

    def loss(p: Any, batch: Any) -> Any:
        losses = token_losses(p, batch)
        keep = batch["keep"].astype(float)
        return masked_mean(losses, keep) + 3 * masked_mean(losses, 1 - keep)

    for function in (loss, jax.value_and_grad(loss)):
        case = case_of(function, (PARAMS, BATCH), num_microbatches=3)
        assert case.proof.is_exact
        assert_exact(case)
    # JAX traces it once, so that both calls have the same variables.
    case = case_of(loss, (PARAMS, BATCH), num_microbatches=3)
    one, other = [eqn for eqn in case.proof.part.jaxpr.eqns if eqn.params.get("name") == "masked_mean"]
    assert one.params["jaxpr"] is other.params["jaxpr"]
