"""The command line: the only part of the tool that prints and writes."""
