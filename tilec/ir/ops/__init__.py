"""All op declarations: `ops.Add`, `ops.For`, `ops.ConvertLayout`, ...

A new op is declared in the file of its dialect; importing this package registers it.
"""

from tilec.ir.ops.cluster import *  # noqa: F403
from tilec.ir.ops.descriptors import *  # noqa: F403
from tilec.ir.ops.elementwise import *  # noqa: F403
from tilec.ir.ops.gpu import *  # noqa: F403
from tilec.ir.ops.hopper import *  # noqa: F403
from tilec.ir.ops.memory import *  # noqa: F403
from tilec.ir.ops.named_barriers import *  # noqa: F403
from tilec.ir.ops.roles import *  # noqa: F403
from tilec.ir.ops.scf import *  # noqa: F403
from tilec.ir.ops.tile import *  # noqa: F403
