"""Codemods for shardings, layouts and partition specs."""
