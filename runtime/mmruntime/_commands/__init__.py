"""What the tool starts in a process of its own."""
