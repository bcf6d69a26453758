"""Replacements of features that JAX removed, for modernized programs; `mmruntime.compat` is their public face."""
