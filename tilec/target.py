"""What each NVIDIA target can do: limits, PTX version and instruction families.

Source: CUDA C++ Programming Guide, "Compute Capabilities"; PTX ISA release notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tilec.errors import TilecError, did_you_mean, shown

# name -> (shared memory bytes that one CTA may opt in to, PTX version emitted)
_TARGETS = {
    "sm_75": (65536, 63), "sm_80": (166912, 70), "sm_86": (101376, 71), "sm_87": (166912, 74),
    "sm_89": (101376, 78), "sm_90": (232448, 80), "sm_90a": (232448, 80),
    "sm_100": (232448, 86), "sm_100a": (232448, 86), "sm_103": (232448, 88),
    "sm_103a": (232448, 88), "sm_120": (101376, 87), "sm_120a": (101376, 87),
    "sm_121": (101376, 88), "sm_121a": (101376, 88),
}
DEFAULT = "sm_90a"
GRID_DEPENDENCY_SM = 90  # the first with griddepcontrol
CLUSTER_SM = 90  # the first with thread block clusters


@dataclass(frozen=True)
class Target:
    """One compilation target.

    sm: compute capability as an integer (90 for sm_90a). max_shared: bytes a CTA may use.
    ptx_version: as in the LLVM feature `+ptx80`.
    """

    name: str
    sm: int
    max_shared: int
    ptx_version: int

    warp_size = 32
    max_threads = 1024
    max_registers = 255
    sm_registers = 65536

    @staticmethod
    def parse(name: str | int | Target) -> Target:
        """The target called `name` ("sm_90a", or 90); TilecError if tilec does not know it."""
        if isinstance(name, Target):
            return name
        if not isinstance(name, str) and not (type(name) is int and 0 <= name < 1000):
            raise TilecError(f"a target is {shown(name)}, expected a name such as sm_90a",
                             advice=f"tilec knows {', '.join(_TARGETS)}")
        return _parse(str(name))

    def registers(self, num_warps: int, asked: int = 0) -> int:
        """The most registers a thread can have. asked: the limit of a launch, or 0."""
        return min(self.max_registers, self.sm_registers // (num_warps * self.warp_size),
                   asked or self.max_registers)

    @property
    def has_bf16_arith(self) -> bool:
        """add/mul/fma on bf16 registers (sm_90 and later; fma alone from sm_80)."""
        return self.sm >= 90

    @property
    def has_fp8_convert(self) -> bool:
        """cvt between f16x2/f32 and e4m3x2/e5m2x2 (sm_89 and later)."""
        return self.sm >= 89

    def __str__(self) -> str:
        return self.name


@lru_cache
def _parse(name: str) -> Target:
    key = name if name.startswith("sm_") else f"sm_{name}"
    if key not in _TARGETS:
        raise TilecError(f"unknown target `{name}`", None, did_you_mean(key, _TARGETS) or
                         f"tilec knows {', '.join(_TARGETS)}")
    digits = re.match(r"sm_(\d+)", key)
    assert digits is not None
    shared, ptx = _TARGETS[key]
    return Target(key, int(digits[1]), shared, ptx)
