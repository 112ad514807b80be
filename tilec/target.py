"""What each NVIDIA target can do: limits, PTX version, and which instructions it has.

Source: CUDA C++ Programming Guide, "Compute Capabilities"; PTX ISA, "PTX ISA Notes" and "Target ISA
Notes" of each instruction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tilec.errors import InternalError, TilecError, did_you_mean, shown

# name -> (shared memory bytes that one CTA may opt in to, PTX version emitted)
_TARGETS = {
    "sm_75": (65536, 70), "sm_80": (166912, 70), "sm_86": (101376, 71), "sm_87": (166912, 74),
    "sm_89": (101376, 78), "sm_90": (232448, 81), "sm_90a": (232448, 81),
    "sm_100": (232448, 86), "sm_100a": (232448, 86), "sm_103": (232448, 88),
    "sm_103a": (232448, 88), "sm_120": (101376, 87), "sm_120a": (101376, 87),
    "sm_121": (101376, 88), "sm_121a": (101376, 88),
}
NAMES = tuple(_TARGETS)
DEFAULT = "sm_90a"


class Needs(NamedTuple):
    """What an instruction needs. since: (first sm, PTX version there) pairs, of which the last
    that the target reaches counts. only: the one target that tilec emits it for. advice: what the
    author of a kernel may do where it is missing."""

    since: tuple[tuple[int, int], ...] = ((75, 63),)
    only: str = ""
    advice: str = ""


_BASE, _AMPERE, _HOPPER = Needs(), Needs(((80, 70),)), Needs(((90, 78),))
_ONLY_90A = Needs(((90, 80),), "sm_90a")
_FP8 = Needs(((89, 81), (90, 78)))
_COPY = Needs(((80, 70),), "", "compile the loop with num_stages = 1 for this target")
_BF16 = Needs(((80, 70),), "", "use f16 or f32 on this target")
# Every instruction that tilec emits, in inline PTX or as an intrinsic `llvm.nvvm.<name>`. A key is
# the beginning of its name, then parts that its name must contain; all keys that fit count.
_INSTRUCTIONS: dict[str, Needs] = {
    **dict.fromkeys(
        """add atom bar barrier.cta bra cvt d2f d2i d2ll d2ui d2ull div ex2 f2i f2ll f2ui f2ull
        fence ld lg2 mov mulhi rcp read.ptx.sreg red rsqrt selp setp shfl st sub
        vprintf""".split(), _BASE),
    "ldmatrix": Needs(((75, 65),)),
    "cvt bf16": _BF16, "ff2bf16x2": _BF16, "ff2f16x2": _AMPERE, "f2tf32": _AMPERE,
    "e4m3x2": _FP8, "ff.to": _FP8, "f16x2.to": _FP8,
    "add bf16": _HOPPER, "atom add bf16": _HOPPER, "red add bf16": _HOPPER,
    **dict.fromkeys(("red v2", "red v4"), Needs(((90, 81),))),
    "redux.sync": _AMPERE, "createpolicy": Needs(((80, 74),)),
    "cp.async": _COPY, "cp.async.bulk": _ONLY_90A, "cp.reduce.async.bulk": _ONLY_90A,
    "mma.sync": _AMPERE,  # of those before, smaller along k, tilec emits none
    "mbarrier": _ONLY_90A, "prefetch.tensormap": _ONLY_90A, "fence.proxy.async": _ONLY_90A,
    "fence.mbarrier_init": _ONLY_90A, "wgmma": _ONLY_90A, "setmaxnreg": _ONLY_90A,
    "elect.sync": _ONLY_90A,
    "stmatrix": _HOPPER, "griddepcontrol": _HOPPER, "barrier.cluster": _HOPPER, "mapa": _HOPPER,
    "read.ptx.sreg.cluster": _HOPPER,
}
_KEYS = [(head.split("."), set(parts), needs) for key, needs in _INSTRUCTIONS.items()
         for head, *parts in (key.split(),)]



class Lack(NamedTuple):
    """needs: what an instruction wants of the target, "sm_80 or later". advice: to the author."""

    needs: str
    advice: str


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

    def has(self, instruction: str) -> bool:
        """Whether kernels for this target may have an instruction."""
        return self.lacks(instruction) is None

    def lacks(self, instruction: str) -> Lack | None:
        """What an instruction needs that this target does not have. InternalError for one that the
        table does not have."""
        return _lacks(self, instruction)

    def __str__(self) -> str:
        return self.name


@lru_cache(maxsize=4096)
def _lacks(target: Target, instruction: str) -> Lack | None:
    name = instruction.split(".")
    found = [needs for head, parts, needs in _KEYS
             if name[:len(head)] == head and parts <= set(name)]
    if not found:
        raise InternalError(f"target.py does not say which targets have `{instruction}`")
    for since, only, advice in found:
        if only and target.name != only:
            return Lack(only, advice)
        first, ptx = max((s for s in since if s[0] <= target.sm), default=(0, 0))
        if not first:
            return Lack(f"sm_{since[0][0]} or later", advice)
        if target.ptx_version < ptx:
            return Lack(f"PTX {ptx // 10}.{ptx % 10}", advice)
    return None


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
