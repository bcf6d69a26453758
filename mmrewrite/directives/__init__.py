"""The hint vocabulary, and the comments and calls that become `Hint` values."""
