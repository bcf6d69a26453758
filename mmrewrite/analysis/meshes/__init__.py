"""What a program asks of its mesh and its schedule."""
