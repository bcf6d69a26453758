"""The devices that JAX has in this process: how many CPU devices, and whether others."""

from __future__ import annotations

import os
from typing import Any

import jax

from mmruntime import _compat


def set_devices(cpus: int | None, gpus: int | None) -> None:
    """Have JAX use so many virtual CPU devices, or the CPU only.

    Args:
        cpus: Virtual CPU devices; without `gpus`, JAX then uses the CPU only. None leaves them as they are.
        gpus: With 0, JAX uses the CPU only.

    Raises:
        RuntimeError: If JAX has started with others.
    """
    cpu_only = gpus == 0 or (gpus is None and bool(cpus))
    if not _compat.backends_started():
        if cpus:
            # JAX raises an error where both this flag and the option are set.
            flags = os.environ.get("XLA_FLAGS", "").split()
            kept = [flag for flag in flags if "xla_force_host_platform_device_count" not in flag]
            os.environ["XLA_FLAGS"] = " ".join(kept)
            jax.config.update("jax_num_cpu_devices", cpus)
        if cpu_only:
            jax.config.update("jax_platforms", "cpu")
        return
    have = len(jax.local_devices(backend="cpu")) if cpus else 0
    if cpus and have != cpus:
        raise RuntimeError(
            f"init: cpus={cpus} comes too late, JAX has started with {have} CPU devices. Call mm.init first, or set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={cpus} in the environment."
        )
    if cpu_only and jax.default_backend() != "cpu":
        raise RuntimeError(
            f"init: the choice of the CPU comes too late, JAX has started on {jax.default_backend()}. Call mm.init "
            "first, or set JAX_PLATFORMS=cpu in the environment."
        )


def uses_cpu_only() -> bool:
    """Whether JAX uses the CPU only, as far as is known without starting it."""
    if _compat.backends_started():
        return jax.default_backend() == "cpu"
    config: Any = jax.config
    return bool(config.jax_platforms == "cpu")
