"""What processes tell each other besides arrays: where they are, what they run, whether they live."""
