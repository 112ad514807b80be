"""Which accumulators may belong to products that are still under way, and what must not happen to
them: their registers are being written, so that nobody may read, copy or exchange them."""

from __future__ import annotations

from tilec.errors import IRError
from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Value


def check_products(func: Func) -> None:
    """IRError at the first op that uses the accumulator of a product before a wait has covered it,
    or hands it on so that it would have to be copied.

    Products in an `if` or loop count as none where a wait asks how many have begun since.
    """
    _Flight(func).block(func.body)


class _Flight:
    """ages: of each accumulator that may be under way, how many products have surely begun since
    its own. taken: those that were, and the op that has them now. origins: the value that had an
    accumulator's registers first."""

    def __init__(self, func: Func) -> None:
        self.ages: dict[Value, int] = {}
        self.taken: dict[Value, Op] = {}
        self.origins: dict[Value, Value] = {}
        self.number = {op: i for i, op in enumerate(func.walk())}

    def block(self, block: Block) -> None:
        for op in block:
            held = [self.take(op, i, v) for i, v in enumerate(op.operands)]
            if isinstance(op, ops.Wgmma):
                self.ages = {v: age + 1 for v, age in self.ages.items()}
                self.ages[op.result] = 0
                if held[2] is not None or self.ends(op.c, op):
                    self.origins[op.result] = self.origin(op.c)
            elif isinstance(op, ops.WarpSpecialize) and self.ages:
                value = next(iter(self.ages))
                raise _refusal(op, f"divides the warps while the product of the accumulator "
                               f"`{value.name}` is under way", value)
            elif isinstance(op, ops.WgmmaWait):
                for result, value, age in zip(op.results, op.values, held, strict=True):
                    self.origins[result] = self.origin(value)
                    if age is not None and age < op.pending:
                        self.ages[result] = age
            elif isinstance(op, ops.ControlFlow):
                self.regions(op, {v: age for v, age in zip(op.operands, held, strict=True)
                                  if age is not None})
            else:
                for inner in op.regions:
                    self.block(inner)

    def origin(self, value: Value) -> Value:
        return self.origins.get(value, value)

    def ends(self, value: Value, op: Op) -> bool:
        """Whether nobody uses a value after an op, which may thus have its registers."""
        here = value.owner if isinstance(value.owner, Block) else value.owner.parent
        return here is op.parent and all(self.number[u] <= self.number[op] for u in value.users)

    def take(self, op: Op, index: int, value: Value) -> int | None:
        """The age of an operand that is under way; from now on the op has it."""
        if value in self.taken:
            raise _refusal(op, f"uses the accumulator `{value.name}` again, which belongs to the "
                           f"{self.taken[value].name} at {self.taken[value].loc}", value)
        age = self.ages.get(value)
        if age is None:
            return None
        if not (op.terminator or isinstance(op, (ops.ControlFlow, ops.WgmmaWait)) or
                isinstance(op, ops.Wgmma) and index == 2):
            raise _refusal(op, f"uses the accumulator `{value.name}`, whose product no "
                           f"gpu.wgmma_wait has covered", value)
        if not op.terminator:
            del self.ages[value]
            self.taken[value] = op
        return age

    def regions(self, op: ops.ControlFlow, given: dict[Value, int]) -> None:
        """Go round until nothing more arrives: an iteration hands on to the next."""
        outer, taken = self.ages, self.taken
        ends, after, known = dict(given), dict(taken), None
        found = _arriving(op, {}, ends)
        while found != known:
            known = found
            for block in op.regions:
                self.ages = outer | {v: found[v] for v in block.args if v in found}
                self.taken = dict(taken)
                self.block(block)
                for value in self.taken.keys() & outer.keys() if op.loop else ():
                    raise _refusal(self.taken[value], f"takes the accumulator `{value.name}` in "
                                   "each round, whose product began before the loop", value)
                after |= self.taken
                ends |= {v: self.ages[v] for v in block.terminator.operands if v in self.ages}
            found = _arriving(op, found, ends)
        self.check_places(op, ends)
        self.ages = {v: age for v, age in outer.items() if v not in after}
        self.ages |= {v: found[v] for v in op.results if v in found}
        self.taken = after

    def check_places(self, op: ops.ControlFlow, ends: dict[Value, int]) -> None:
        """Refuse two accumulators that become one, and one that a loop hands on in another's place,
        or in a place that is new."""
        arguments = {v for block in op.regions for v in block.args}
        first, chosen = set(op.operands), dict[Value, Value]()
        for target, source in op.flow():
            if source not in ends:
                continue
            origin = self.origin(source)
            if op.loop:
                stays = source in first or target not in arguments or \
                    origin in arguments and origin.index == target.index
            else:
                stays = chosen.setdefault(target, origin) is origin
            if not stays:
                error = _refusal(op, f"would have to copy the accumulator `{source.name}`, whose "
                                 "product is under way", source)
                error.advice += "; or begin a new product in the old one's place, as " \
                    "`acc = tlg.wgmma(a, b, acc, use_acc=False)`"
                raise error
        self.origins |= chosen


def _arriving(op: ops.ControlFlow, found: dict[Value, int], ends: dict[Value, int]
              ) -> dict[Value, int]:
    """The least ages with which accumulators arrive in arguments and results."""
    out = dict(found)
    for target, source in op.flow():
        if source in ends:
            out[target] = min(out.get(target, ends[source]), ends[source])
    return out


def _refusal(op: Op, what: str, value: Value) -> IRError:
    return op.fail(what, f"wait before: `{value.name} = tlg.wgmma_wait(0, {value.name})`")
