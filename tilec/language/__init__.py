"""What a kernel author imports: `import tilec.language as tl`."""

from __future__ import annotations

from tilec.language import core, extra, math, random, standard
from tilec.language.core import *  # noqa: F403
from tilec.language.core import __all__ as _core_names
from tilec.language.extra import libdevice as libdevice
from tilec.language.random import *  # noqa: F403
from tilec.language.random import __all__ as _random_names
from tilec.language.standard import sigmoid, softmax, swizzle2d

__all__ = [*_core_names, *_random_names, "core", "extra", "math", "random", "sigmoid", "softmax",
           "standard", "swizzle2d"]


def __dir__() -> list[str]:
    """The author's names, without the modules that define them: what suggestions are made of."""
    return __all__
