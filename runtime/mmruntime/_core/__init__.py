"""Tasks, meshes, submeshes, logical axes, switches, marks and the registry of tasks."""
