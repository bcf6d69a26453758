"""Codemods for tasks."""
