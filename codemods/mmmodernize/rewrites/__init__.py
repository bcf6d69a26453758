"""Codemods of `mmrewrite modernize`, one per module."""
