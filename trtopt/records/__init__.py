"""The frozen records that flow between stages, and their JSON form: one module for each file format.

Every record is immutable and knows nothing of files or devices. JSON is read strictly: an unknown field,
a missing one or one of another type is an error that names its place. Files carry a `schema` of the form
`trtopt.KIND/N`; `read_versioned` knows which of them are read.

Units are in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes. Shapes are tuples of integers;
in a model's own description a symbolic axis is its name, an anonymous one is "?".
"""

from trtopt.records.base import *
from trtopt.records.bench import *
from trtopt.records.build import *
from trtopt.records.compare import *
from trtopt.records.graph import *
from trtopt.records.history import *
from trtopt.records.inspection import *
from trtopt.records.machine import *
from trtopt.records.plan import *
from trtopt.records.precision import *
from trtopt.records.profile import *
from trtopt.records.sweep import *
from trtopt.records.tensors import *
from trtopt.records.tune import *
