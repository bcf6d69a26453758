"""What a terminal is shown: colors, progress, output through pipes, Ctrl-C.

Colors and what they mean are `style`; the line of a run that takes long is `progress`.
"""
