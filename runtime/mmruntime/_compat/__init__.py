"""The only folder that touches JAX's private parts or asks which JAX this is.

Everything here exists, under one of the spellings in these files, from JAX 0.10 to 0.12. Other folders know none of the
files: they write `_compat.name` for every name. What a new JAX calls otherwise is changed in the file of its subject.
"""

# ruff: noqa: F403

import os

from jax._src import source_info_util, traceback_util

from mmruntime._compat.arrays import *
from mmruntime._compat.configuration import *
from mmruntime._compat.contents import *
from mmruntime._compat.dispatch import *
from mmruntime._compat.equations import *
from mmruntime._compat.errors import *
from mmruntime._compat.executables import *
from mmruntime._compat.jaxprs import *
from mmruntime._compat.lines import *
from mmruntime._compat.meshes import *
from mmruntime._compat.processes import *

# Hide our own frames from JAX, so that messages, profiles and tracebacks show the user's lines.
_RUNTIME = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
source_info_util.register_exclusion(_RUNTIME)
traceback_util.register_exclusion(_RUNTIME)
