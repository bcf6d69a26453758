"""From programs to instructions: the stages of each microbatch loop, the order that they follow, and what runs when.

`cut_layers` deals layers out to stages, `loop_schedule` asks `mmruntime.schedules` for an order, `instructions` writes
the list. Whether effects, such as those of `jax.debug.print`, keep their order is `effect_order`.
"""
