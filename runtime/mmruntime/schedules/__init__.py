"""Pipeline schedules as plain data: make, check, simulate and draw them.

Nothing here imports JAX or any other part of `mmruntime`: `mmrewrite plan` draws schedules where JAX is not installed.

A name and sizes come in (`_make`), or actions that users write (`_custom`); a `Schedule` goes out that `_validate` has
checked, its bound of live activations included. The named ones are in `_algorithms`, searches in `_search`, pictures in
`_drawing`. What a step takes under it is simulated by `_simulate`, whose defaults are the costs that plans assume where
none are given: `_costs` says what a number means for a stage, `_timing` runs the clock, `_memory` counts activations.
"""

from mmruntime.schedules._action import Action as Action
from mmruntime.schedules._catalog import AUTO as AUTO
from mmruntime.schedules._catalog import DEFAULT as DEFAULT
from mmruntime.schedules._catalog import names as names
from mmruntime.schedules._custom import custom as custom
from mmruntime.schedules._cut import cut as cut
from mmruntime.schedules._drawing.page import html as html
from mmruntime.schedules._drawing.page import svg as svg
from mmruntime.schedules._drawing.text_timeline import draw as draw
from mmruntime.schedules._make import make as make
from mmruntime.schedules._offload import HostCopy as HostCopy
from mmruntime.schedules._offload import Offload as Offload
from mmruntime.schedules._offload import auto_offload as auto_offload
from mmruntime.schedules._offload import offload as offload
from mmruntime.schedules._schedule import Schedule as Schedule
from mmruntime.schedules._search.auto import auto as auto
from mmruntime.schedules._search.auto import lower_bound as lower_bound
from mmruntime.schedules._search.choice import Choice as Choice
from mmruntime.schedules._search.choice import Considered as Considered
from mmruntime.schedules._search.objective import SearchOptions as SearchOptions
from mmruntime.schedules._search.request import Auto as Auto
from mmruntime.schedules._simulate import Event as Event
from mmruntime.schedules._simulate import Simulation as Simulation
from mmruntime.schedules._simulate import simulate as simulate
from mmruntime.schedules._slices import sliced as sliced

# The name that `SearchOptions` was published under.
Options = SearchOptions
