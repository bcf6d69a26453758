"""What the values of a program may be: one step back from a value, and readers that go all the way.

In: an expression of a module of the project. Out: the values that it may be, as far as a question wants to go, and
what is unknown, each with the reason. An unknown is never "no".

- `value.py`: values with access paths. `flow.py`: one step back, by the kind of expression, remembered; and the readers
  `may`, to report by, and `must`, to edit by, which stops at its first unknown.
- One step back for the forms of Python, each written once: `names.py` with `targets.py` (bindings, loops, contexts,
  patterns), `functions.py` with `arguments.py` (calls, results, decorators, closures), `classes.py` (attributes, bases,
  fields, properties), `containers.py`, `library.py` (functions of Python's library) with `array_libraries.py` (those of
  JAX, Flax, Equinox, NumPy), `callbacks.py` (those that call what they are given) and `fixtures.py` (runners of tests).
  Computed names: `texts.py`.
- What a project stores, and where: `stores.py`; what packages out of view keep of it: `kept.py`. What becomes of a
  value: `uses.py`. What a call runs: `callees.py`. What annotations say of a value: `annotations.py`.

A new form of Python is added in one of these, and all questions see it. A new question is a test of leaves, with one of
the readers, at its client.
"""
