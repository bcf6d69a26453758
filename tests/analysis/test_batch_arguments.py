"""Which arguments of a gradient function are the batch and the keys."""

from __future__ import annotations

import pytest
from hinted_sites import refusal_of, site_of

from mmrewrite.analysis.steps.batch_arguments import Batch, choose_batch
from mmrewrite.analysis.steps.gradients import find_gradient
from mmrewrite.analysis.steps.losses import find_function
from mmrewrite.codemod.site import HintMistake

pytestmark = pytest.mark.quick

LOSS = "def loss(params, batch, rng): ...\n"
POSITIONS = (
    "write `argnum=` with the position of the argument that has one row per example{}, and `rng=` with that of its "
    "random key, or `rng=None`"
)


def chosen(text: str) -> Batch:
    site = site_of(f"import jax\n{text}\n")
    gradient = find_gradient(site)
    return choose_batch(site, gradient, find_function(site, gradient.loss))


@pytest.mark.parametrize(
    ("text", "argnum", "rng"),
    [
        pytest.param("y = jax.grad(f)(p, b)  # mm: microbatch(size=2)", "1", None, id="the only other argument"),
        pytest.param(
            "y = jax.grad(f, argnums=1)(b, p)  # mm: microbatch(size=2)", "0", None, id="the second is differentiated"
        ),
        pytest.param(
            "y = jax.grad(f)(p, b, rng)  # mm: microbatch(size=2)", "1", None, id="one key is no batch, by its value"
        ),
        pytest.param(
            f"{LOSS}y = jax.grad(loss)(p, b, r)  # mm: microbatch(size=2)",
            "1",
            None,
            id="one key is no batch, by its parameter",
        ),
        pytest.param("y = jax.grad(f)(p, b, 0.5)  # mm: microbatch(size=2)", "1", None, id="a literal is no batch"),
        pytest.param(
            "y = jax.grad(f)(p, b, r)  # mm: microbatch(size=2, rng=2)", "1", "2", id="the hint says which is the key"
        ),
        pytest.param(
            f'{LOSS}y = jax.grad(loss)(p, b, r)  # mm: microbatch(size=2, rng="rng")', "1", "2", id="a key by its name"
        ),
        pytest.param(
            f'{LOSS}y = jax.grad(loss)(p, b, r)  # mm: microbatch(size=2, argnum="batch", rng=None)',
            "1",
            "()",
            id="a batch by its name",
        ),
        pytest.param(
            'def loss(p, x, y): ...\nz = jax.grad(loss)(p, x, y)  # mm: microbatch(size=2, argnum=("x", "y"))',
            "(1, 2)",
            None,
            id="two batches by their names",
        ),
        pytest.param(
            'def loss(p, x): ...\nz = jax.grad(loss)(p, x)  # mm: microbatch(size=2, argnum=("x",))',
            "(1,)",
            None,
            id="a tuple of one",
        ),
        pytest.param(
            "y = jax.grad(f)(p, x, z)  # mm: microbatch(size=2, argnum=n - 1)", "n - 1", None, id="an expression"
        ),
    ],
)
def test_positions(text: str, argnum: str, rng: str | None) -> None:
    batch = chosen(text)
    assert (batch.argnum, batch.rng, batch.appended, batch.moved) == (argnum, rng, [], [])


def test_a_batch_by_keyword_goes_to_its_position() -> None:
    batch = chosen("def loss(p, b): ...\ny = jax.grad(loss)(p, b=x)  # mm: microbatch(size=2)")
    assert (batch.argnum, batch.moved) == ("1", ["b"])


def test_keywords_before_the_batch_go_with_it() -> None:
    batch = chosen('def loss(p, c, b): ...\ny = jax.grad(loss)(p, c=1, b=x)  # mm: microbatch(size=2, argnum="b")')
    assert (batch.argnum, batch.moved) == ("2", ["c", "b"])


def test_a_batch_that_the_loss_closes_over_becomes_its_last_parameter() -> None:
    batch = chosen(
        "def step(params, batch):\n"
        "    def loss(p):\n"
        "        return p - batch\n"
        "    return jax.grad(loss)(params)  # mm: microbatch(size=2)\n"
    )
    assert (batch.argnum, batch.appended) == ("1", ["batch"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            "y = jax.grad(f)(p, x=x, z=z)  # mm: microbatch(size=2)",
            "more than one argument could be the batch: `x`, `z`, and the loss cannot be seen; pass "
            "those that have one row per example by position, and write `argnum=` with their positions",
            id="two keywords of a loss that cannot be seen",
        ),
        pytest.param(
            "y = jax.grad(f)(p, *x)  # mm: microbatch(size=2)",
            f"star-args hide which argument is the batch; {POSITIONS.format(', counted from 0')}",
            id="star-args",
        ),
        pytest.param(
            "y = jax.grad(f)  # mm: microbatch(size=2)",
            f"this gradient function is not called where it can be seen; {POSITIONS.format(', counted from 0')}",
            id="no call",
        ),
        pytest.param(
            "def loss(p, b, key): ...\ny = jax.grad(loss)  # mm: microbatch(size=2)",
            f"this gradient function is not called where it can be seen; {POSITIONS.format(' (`b` is 1, `key` is 2)')}",
            id="no call of a loss that can be seen",
        ),
        pytest.param(
            "g = jax.grad(f)  # mm: microbatch(size=2)\ng(p, b)\ng(p, b, c)",
            f"this gradient function is called with different numbers of arguments; "
            f"{POSITIONS.format(', counted from 0')}",
            id="calls that differ",
        ),
        pytest.param(
            "y = jax.grad(f)(p, rng)  # mm: microbatch(size=2)",
            "no argument of this call could be the batch: all are differentiated, keys or settings; pass the batch to "
            "the loss by position, or write `argnum=` with the name or the position of what is the batch all the same",
            id="only a key",
        ),
        *(
            pytest.param(
                f"def step(make, p, x):\n    return jax.grad(make(x, 2))(p)  # mm: microbatch(size=2{argnum})",
                "the loss that `make(x, 2)` makes cannot be seen; write `lambda params, x: make(x, 2)(params)` in its "
                "place, with a parameter for each value that has one row per example, and pass these to the gradient "
                "as well",
                id=f"a loss of a maker that cannot be seen{argnum}",
            )
            for argnum in ("", ', argnum="x"')
        ),
        pytest.param(
            'y = jax.grad(f)(p, x)  # mm: microbatch(size=2, argnum="x")',
            "cannot see the parameters of `f`; write the position instead of `x`",
            id="a name without a definition",
        ),
        pytest.param(
            'def loss(p, *, b): ...\ny = jax.grad(loss)(p, b=x)  # mm: microbatch(size=2, argnum="b")',
            "`b` has no position, as it stands after a `*` among the parameters of the loss; remove that `*`",
            id="a keyword-only parameter",
        ),
        pytest.param(
            'def loss(p, b): ...\ny = jax.grad(loss)(p)  # mm: microbatch(size=2, argnum="b")',
            "the call does not pass `b`, so there is nothing to cut; pass it by position",
            id="not passed",
        ),
        pytest.param(
            'def loss(p, c, b): ...\ny = jax.grad(loss)(p, b=x)  # mm: microbatch(size=2, argnum="b")',
            "the batch is passed by keyword and something before it is not passed; pass it by position",
            id="a gap before the keyword",
        ),
        pytest.param(
            'def loss(p, c, b): ...\ny = jax.grad(loss)(p, b=x(), c=z())  # mm: microbatch(size=2, argnum="b")',
            "the batch is passed by keyword, and passing it by position would change the order in which the arguments "
            "are evaluated; pass it by position",
            id="keywords out of order that call something",
        ),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    assert refusal_of(lambda: chosen(text))[1] == reason


@pytest.mark.parametrize(
    ("text", "question", "argnum"),
    [
        pytest.param(
            "y = jax.grad(f)(p, x, z)  # mm: microbatch(size=2)",
            "more than one argument could be the batch: `x`, `z`",
            "(1, 2)",
            id="by position",
        ),
        pytest.param(
            "def loss(p, c, b): ...\ny = jax.grad(loss)(p, x, b=z)  # mm: microbatch(size=2)",
            "more than one argument could be the batch: `x`, `b`",
            '(1, "b")',
            id="one by keyword",
        ),
        pytest.param(
            "def step(params, a, b):\n"
            "    def loss(p):\n"
            "        return p - a * b\n"
            "    return jax.grad(loss)(params)  # mm: microbatch(size=2)\n",
            "the loss closes over its batch, and more than one value could be it: `a`, `b`",
            '("a", "b")',
            id="closed over",
        ),
    ],
)
def test_several_candidates_are_a_question(text: str, question: str, argnum: str) -> None:
    batch = chosen(text)
    assert (batch.question, batch.argnum) == (question, argnum)


def test_an_unknown_name_is_a_mistake_in_the_hint() -> None:
    with pytest.raises(HintMistake) as wrong:
        chosen('def loss(p, batch): ...\ny = jax.grad(loss)(p, b)  # mm: microbatch(size=2, argnum="bacth")')
    assert wrong.value.message == ("the loss has no parameter `bacth` and closes over none; did you mean `batch`?")


PARTS = {
    "unpacked": "x, y = batch",
    "items": "x, y = batch['x'], batch['y']",
    "attributes": "x, y = batch.x, batch.y",
    "one by one": "x = batch.x\n    y = batch.more.y",
    "from a generator": "x, y = (batch.get(name) for name in names)",
    "compared": "x = batch['x']\n    y = (x > 0) * 2",
    "computed": "x = batch.x\n    y = jax.numpy.where(x == 0, 0, batch.y).astype(int)",
}
OTHERS = {
    "two parameters": "x, y = batch, more",
    "of the whole batch": "x = batch['x']\n    y = x.mean(0)",
    "with another": "x = batch['x']\n    y = x * more",
    "in another shape": "x = batch['x']\n    y = x.reshape(-1)",
    "of the object": "x, y = self.x, self.y",
    "of the state": "x, y = batch, state.scale * batch",
}
STEP = (
    "class Trainer:\n"
    "  def step(self, state, batch, more, names):\n"
    "    {body}\n"
    "    {loss}\n"
    "    return jax.grad({call})  # mm: microbatch(size=2)\n"
)


@pytest.mark.parametrize("body", PARTS.values(), ids=PARTS)
def test_parts_of_one_batch_are_cut_together(body: str) -> None:
    passed = chosen(STEP.format(body=body, loss="", call="f)(state.params, x, y"))
    closed = chosen(STEP.format(body=body, loss="loss = lambda p: p(x, y)", call="loss)(state.params"))
    assert (passed.question, passed.argnum) == (closed.question, closed.argnum) == (None, "(1, 2)")


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_what_may_be_no_part_of_the_batch_is_asked(body: str) -> None:
    batch = chosen(STEP.format(body=body, loss="loss = lambda p: p(x, y)", call="loss)(state.params"))
    assert batch.question == "the loss closes over its batch, and more than one value could be it: `x`, `y`"


SIZES = ("n, m = x.shape", "n = x.shape[0]", "n = len(x)", "n = x.ndim", "n = x.dtype", "n, m = jax.numpy.shape(x)")


@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_the_batch_are_not_cut(size: str) -> None:
    body = f"x = batch.x\n    {size}"
    closed = chosen(STEP.format(body=body, loss="loss = lambda p: p(x, n)", call="loss)(state.params"))
    passed = chosen(STEP.format(body=body, loss="", call="f)(state.params, x, n"))
    assert (closed.question, closed.argnum) == (passed.question, passed.argnum) == (None, "1")
