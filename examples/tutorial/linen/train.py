"""Train a residual network on random data: Flax linen and optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

WIDTH, LAYERS, BATCH = 32, 8, 64


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        wide = nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)))
        return x + nn.Dense(WIDTH)(wide)


class Model(nn.Module):
    def setup(self):
        self.blocks = [Block() for _ in range(LAYERS)]
        self.head = nn.Dense(1)

    def __call__(self, x):
        # mm: stages
        for block in self.blocks:
            x = block(x)
        return self.head(x)[:, 0]


def make_state():
    model = Model()
    params = model.init(jax.random.key(0), jnp.zeros((1, WIDTH)))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))


def make_batch(step):
    x = np.random.default_rng(step).normal(size=(BATCH, WIDTH)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(axis=1))}


def example_arguments():
    return make_state(), make_batch(0)


# mm: mesh(stage=4); mjit
@jax.jit
def train_step(state, batch):
    def loss_fn(params, batch):
        y = state.apply_fn({"params": params}, batch["x"])
        return ((y - batch["y"]) ** 2).mean()

    # mm: microbatch(count=4, schedule="1f1b")
    loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
    return state.apply_gradients(grads=grads), loss


def main():
    state = make_state()
    for step in range(20):
        state, loss = train_step(state, make_batch(step))
        print(f"step {step:2d}  loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
