"""Jaxprs as the passes see them: building, inlining, equality, cost."""
