"""Reports and timelines of a compiled step."""
