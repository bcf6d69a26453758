"""Names and aliases of the schedules; made by tools/make_schedules.py, do not edit."""

SCHEDULES = (
    "gpipe",
    "fill-drain",
    "breadth-first",
    "1f1b",
    "wavefront",
    "prefetch-wavefront",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe-v",
    "dualpipe",
    "zero-bubble-h2",
    "auto",
)

# Those that take turns between several stages of a submesh, and those of stages in a V.
IN_TURNS = frozenset(("interleaved-1f1b",))
OF_THE_V = frozenset(("zb-v", "v-half", "v-min", "dualpipe-v"))
