"""The language server: what `mmrewrite check` and `plan` say, in an editor, as the user types.

The server process (`server`) speaks the protocol; everything that reads sources runs in a worker process (`workspace`),
so that no keystroke waits for it. Neither runs the user's code or writes a file.
"""
