"""Which names old JAX code uses: the indices of what releases removed, and the gates on the bytes of a file."""
