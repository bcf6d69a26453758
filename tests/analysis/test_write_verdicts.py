"""What a method writes is found once for all losses: with and without that, the same losses are refused."""

from __future__ import annotations

import textwrap

import pytest
from hinted_sites import site_of

from mmrewrite.analysis import outside_writes
from mmrewrite.analysis.steps.gradients import find_gradient

CALLS = {
    "nothing": ("return x", False),
    "own attribute": ("self.count = 1\n        return x", True),
    "part": ("self.parts[0].append(x)\n        return x", True),
    "next": ("next(self)\n        return x", True),
    "other object": ("return self.inner(x)", False),
    "module": ("SEEN.append(x)\n        return x", True),
}


def found(module: str) -> outside_writes.OutsideWrite | None:
    site = site_of(module)
    return outside_writes.writes_outside(site, find_gradient(site), ())


@pytest.mark.parametrize("what", CALLS)
def test_verdicts_agree_with_each_search(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, writes = CALLS[what]
    module = textwrap.dedent(
        """\
        import jax
        SEEN = []
        class Other:
            def __call__(self, x):
                return x
        class Model:
            def __call__(self, x):
                {body}
        def make(model):
            def loss_fn(params, x):
                return model(params * x).mean()
            @jax.jit
            def step(params, x):
                return jax.grad(loss_fn)(params, x)  # mm: microbatch(size=2)
            return step
        """
    ).format(body=body.replace("\n        ", "\n                ").replace("                return", "        return"))

    known = found(module)
    monkeypatch.setattr(outside_writes._LossSearch, "_asked", lambda *_: None)
    assert found(module) == known
    assert (known is not None) == writes


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("own(x)", id="object_that_a_function_makes"),
        pytest.param("list(map(Counter.run, [Counter()]))", id="function_of_the_class"),
        pytest.param("Counter().run()", id="object_that_the_loss_makes"),
        pytest.param("own(x); Other()(x)", id="another_class"),
    ],
)
@pytest.mark.parametrize("second", ["counter.run()", "run(counter)", "next(counter.inner)", "counter.inner.run()"])
def test_what_is_found_of_new_objects_does_not_hold_for_others(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = """\
import jax
class Counter:
    def run(self):
        self.count = 1
    def __next__(self):
        self.count = 1
class Other:
    def __call__(self, x):
        return own(x)
def run(counter):
    counter.run()
def own(x):
    counter = Counter()
    run(counter)
    counter.run()
    next(counter)
    return x
def make(counter):
    def loss_fn(params, x):
        FIRST
        SECOND
        return (params * x).mean()
    @jax.jit
    def step(params, x):
        return jax.grad(loss_fn)(params, x)  # mm: microbatch(size=2)
    return step
"""
    with_both = module.replace("FIRST", first).replace("SECOND", second)
    with_first = module.replace("FIRST", first).replace("SECOND", "pass")
    known = found(with_both), found(with_first)
    assert known[0] is not None
    monkeypatch.setattr(outside_writes._LossSearch, "_asked", lambda *_: None)
    assert (found(with_both), found(with_first)) == known
