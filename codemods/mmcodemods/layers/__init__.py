"""Codemods for loops and scans of layers."""
