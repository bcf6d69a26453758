"""Commands that the tool runs as processes of their own, because it never imports JAX itself."""
