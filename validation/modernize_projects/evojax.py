"""evojax: https://github.com/google/evojax, of February 2023.

Its `Trainer` for two generations on cart-pole with three of its algorithms, CR-FM-NES among them, and rollouts over
eight devices by `pmap`. Stood in for: `evosax`, `cma`, and the pictures that tasks draw.
"""

import logging
from pathlib import Path

import numpy as np
from modernize_projects.support import stand_in

COMMIT = "5c522c1bf1"
SELECT = ("replace_pmap",)

for package in ("evosax", "cma", "PIL"):
    stand_in(package)
from evojax import Trainer, algo  # noqa: E402
from evojax.policy.mlp import MLPPolicy  # noqa: E402
from evojax.task.cartpole import CartPoleSwingUp  # noqa: E402

logger = logging.getLogger("evojax")


Path("saved").mkdir(exist_ok=True)


def trained(solver, **given):
    """Scores and parameters of two generations of eight."""
    policy = MLPPolicy(input_dim=5, hidden_dims=[4], output_dim=1, logger=logger)
    made = getattr(algo, solver)(param_size=policy.num_params, pop_size=8, seed=1, logger=logger, **given)
    train, test = (CartPoleSwingUp(test=which, max_steps=6) for which in (False, True))
    scores = []
    trainer = Trainer(
        policy,
        made,
        train,
        test,
        max_iter=2,
        log_interval=1,
        test_interval=1,
        n_repeats=2,
        n_evaluations=8,
        logger=logger,
        log_dir="saved",
        log_scores_fn=lambda step, values, stage: scores.append(np.asarray(values)),
    )
    best = trainer.run(demo_mode=False)
    return {"scores": scores, "best": best, "params": made.best_params}


out = {
    "crfmnes": trained("CRFMNES"),
    "pgpe": trained("PGPE", optimizer="adam"),
    "simple": trained("SimpleGA"),
}
