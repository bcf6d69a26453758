"""Codemods for where single values lie: constraints, and gathering."""
