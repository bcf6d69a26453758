"""Train a residual network on random data: Flax nnx and optax."""

import numpy as np
import optax
from flax import nnx

WIDTH, LAYERS, BATCH = 32, 8, 64


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.wide = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        return x + self.narrow(nnx.gelu(self.wide(self.norm(x))))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.head = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, x):
        # mm: stages
        for block in self.blocks:
            x = block(x)
        return self.head(x)[:, 0]


def make_state():
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


def make_batch(step):
    x = np.random.default_rng(step).normal(size=(BATCH, WIDTH)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(axis=1))}


def example_arguments():
    return *make_state(), make_batch(0)


# mm: mesh(stage=4); mjit
@nnx.jit
def train_step(model, optimizer, batch):
    def loss_fn(model, batch):
        return ((model(batch["x"]) - batch["y"]) ** 2).mean()

    # mm: microbatch(count=4, schedule="1f1b")
    loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
    optimizer.update(model, grads)
    return loss


def main():
    model, optimizer = make_state()
    for step in range(20):
        loss = train_step(model, optimizer, make_batch(step))
        print(f"step {step:2d}  loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
