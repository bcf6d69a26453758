"""What a terminal is shown: colors, progress, output through pipes, Ctrl-C."""
