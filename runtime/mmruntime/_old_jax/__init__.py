"""What modernized programs need in place of what JAX removed."""
