"""Pipeline schedules as plain data: make, check, simulate and draw them.

Nothing here imports JAX or any other part of `mmruntime`: `mmrewrite plan` draws schedules where JAX is not installed.
"""

from ._action import Action as Action
from ._auto import auto as auto
from ._auto import lower_bound as lower_bound
from ._auto_request import Auto as Auto
from ._choice import Choice as Choice
from ._choice import Considered as Considered
from ._custom import custom as custom
from ._make import make as make
from ._objective import SearchOptions as SearchOptions
from ._offload import HostCopy as HostCopy
from ._offload import Offload as Offload
from ._offload import auto_offload as auto_offload
from ._offload import offload as offload
from ._page import html as html
from ._page import svg as svg
from ._registry import AUTO as AUTO
from ._registry import DEFAULT as DEFAULT
from ._registry import names as names
from ._schedule import Schedule as Schedule
from ._simulate import Event as Event
from ._simulate import Simulation as Simulation
from ._simulate import simulate as simulate
from ._slices import sliced as sliced
from ._text_timeline import draw as draw

# The name that `SearchOptions` was published under.
Options = SearchOptions
