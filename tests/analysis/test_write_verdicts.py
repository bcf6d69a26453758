"""What a method writes is found once for all losses: with and without that, the same losses are refused."""

from __future__ import annotations

import textwrap

import pytest
from hinted_sites import site_of

from mmrewrite.analysis import outside_writes
from mmrewrite.analysis.gradients import find_gradient

pytestmark = pytest.mark.python

CALLS = {
    "nothing": ("return x", False),
    "own attribute": ("self.count = 1\n        return x", True),
    "part": ("self.parts[0].append(x)\n        return x", True),
    "next": ("next(self)\n        return x", True),
    "other object": ("return self.inner(x)", False),
    "module": ("SEEN.append(x)\n        return x", True),
}


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

    def found() -> outside_writes.OutsideWrite | None:
        site = site_of(module)
        gradient = find_gradient(site)
        return outside_writes.writes_outside(site, gradient, ())

    known = found()
    monkeypatch.setattr(outside_writes._LossSearch, "_is_alone", lambda *_: False)
    assert found() == known
    assert (known is not None) == writes
