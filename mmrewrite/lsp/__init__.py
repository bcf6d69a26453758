"""The language server: what `mmrewrite check` and `plan` say, in an editor, as the user types.

The server process (`server`) speaks the protocol; everything that reads sources runs in a worker process (`workspace`),
so that no keystroke waits for it. Neither runs the user's code or writes a file.

A request comes in, an answer in positions of the protocol goes out: its text (of a diagnostic, a hover, an edit) is
made in `workspace`, its shape for the editor in `server`. What may be written next is `completion`. Code actions that
suggest hints are `suggestion`.
"""
