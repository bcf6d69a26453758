"""Train a residual network on random data: Equinox and optax."""

import equinox as eqx
import jax
import numpy as np
import optax

WIDTH, LAYERS, BATCH = 32, 8, 64


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    wide: eqx.nn.Linear
    narrow: eqx.nn.Linear

    def __init__(self, key):
        key_wide, key_narrow = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.wide = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=key_wide)
        self.narrow = eqx.nn.Linear(4 * WIDTH, WIDTH, key=key_narrow)

    def __call__(self, x):
        return x + self.narrow(jax.nn.gelu(self.wide(self.norm(x))))


class Model(eqx.Module):
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, key):
        *keys, key_head = jax.random.split(key, LAYERS + 1)
        self.blocks = [Block(key) for key in keys]
        self.head = eqx.nn.Linear(WIDTH, 1, key=key_head)

    def __call__(self, x):
        # mm: stages
        for block in self.blocks:
            x = jax.vmap(block)(x)
        return jax.vmap(self.head)(x)[:, 0]


OPTIMIZER = optax.adamw(1e-3)


def make_state():
    model = Model(jax.random.key(0))
    return model, OPTIMIZER.init(eqx.filter(model, eqx.is_array))


def make_batch(step):
    x = np.random.default_rng(step).normal(size=(BATCH, WIDTH)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(axis=1))}


def example_arguments():
    return *make_state(), make_batch(0)


# mm: mesh(stage=4); mjit
@eqx.filter_jit
def train_step(model, opt_state, batch):
    def loss_fn(model, batch):
        return ((model(batch["x"]) - batch["y"]) ** 2).mean()

    # mm: microbatch(count=4, schedule="1f1b")
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, batch)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def main():
    model, opt_state = make_state()
    for step in range(20):
        model, opt_state, loss = train_step(model, opt_state, make_batch(step))
        print(f"step {step:2d}  loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
