"""Uses that may be of an old name: they are reported, not edited."""
