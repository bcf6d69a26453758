"""Replace what JAX removed or deprecated by what is exactly the same today, in whole regions or not at all."""
