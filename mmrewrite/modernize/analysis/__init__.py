"""What codemods of `modernize` ask about a program: meshes in effect, reach, old names."""
