"""Replace names that JAX removed or deprecated by exact equivalents of today, in whole regions or not at all."""
