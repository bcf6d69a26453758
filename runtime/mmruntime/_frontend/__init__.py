"""What programs call inside a step. It computes as plain JAX does and leaves marks in the trace."""
