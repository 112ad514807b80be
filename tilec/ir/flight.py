"""Which accumulators may belong to products that are still under way, and who must not look at
them."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Value


def check_products(func: Func) -> None:
    """IRError at the first op that uses the accumulator of a product before a wait has covered it.

    Products in an `if` or loop count as none where a wait asks how many have begun since.
    """
    _Flight().block(func.body)


class _Flight:
    """ages: of each accumulator that may be under way, how many products have surely begun since
    its own."""

    def __init__(self) -> None:
        self.ages: dict[Value, int] = {}

    def block(self, block: Block) -> None:
        for op in block:
            self.check(op)
            if isinstance(op, ops.Wgmma):
                self.ages = {v: age + 1 for v, age in self.ages.items()}
                self.ages[op.result] = 0
            elif isinstance(op, ops.WgmmaWait):
                for result, value in zip(op.results, op.values, strict=True):
                    if self.ages.get(value, op.pending) < op.pending:
                        self.ages[result] = self.ages[value]
            elif isinstance(op, ops.ControlFlow):
                self.regions(op)
            else:
                for inner in op.regions:
                    self.block(inner)

    def check(self, op: Op) -> None:
        hands_on = op.terminator or isinstance(op, (ops.ControlFlow, ops.WgmmaWait))
        for index, value in enumerate(op.operands):
            if value in self.ages and not hands_on and not (isinstance(op, ops.Wgmma) and
                                                            index == 2):
                error = op.fail(f"uses the accumulator `{value.name}`, whose product no "
                                f"gpu.wgmma_wait has covered")
                error.advice = f"wait: `{value.name} = tlg.wgmma_wait(0, {value.name})`"
                raise error

    def regions(self, op: ops.ControlFlow) -> None:
        """Go round until nothing more arrives: an iteration hands on to the next."""
        outer = self.ages
        found, known = _arriving(op, {}, outer), None
        while found != known:
            known, ends = found, dict[Value, int]()
            for block in op.regions:
                self.ages = outer | {v: found[v] for v in block.args if v in found}
                self.block(block)
                ends |= self.ages
            found = _arriving(op, found, ends)
        self.ages = outer | {v: found[v] for v in op.results if v in found}


def _arriving(op: ops.ControlFlow, found: dict[Value, int], ages: dict[Value, int]
              ) -> dict[Value, int]:
    """The least ages with which accumulators arrive in arguments and results."""
    out = dict(found)
    for target, source in op.flow():
        if source in ages:
            out[target] = min(out.get(target, ages[source]), ages[source])
    return out
