"""The classes of a program, what their attributes are, and who uses which function."""
