"""canonicalize: fold constants and bring ops into the one form that later passes look for."""

from __future__ import annotations

from tilec.ir.core import Module
from tilec.ir.rewriter import rewrite
from tilec.passes.base import Pass
from tilec.passes.simplify import arith, control, memory, shape

PATTERNS = (*arith.PATTERNS, *shape.PATTERNS, *memory.PATTERNS, *control.PATTERNS)


class Canonicalize(Pass):
    """Fold what is known, drop what does nothing, put constants to the right.

    Only ops whose GPU result is exact are folded, by their eval rules, so no result changes.

        %0 = tile.constant() {value = 2} : i32          %0 = tile.constant() {value = 5} : i32
        %1 = tile.add(%0, %x) : i32               ->    %1 = tile.add(%x, %0) : i32
        %2 = tile.constant() {value = 3} : i32
        %3 = tile.add(%1, %2) : i32
    """

    def run(self, module: Module) -> None:
        rewrite(module, PATTERNS)
