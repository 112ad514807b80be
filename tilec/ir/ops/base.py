"""Bases that several dialects' ops share."""

from __future__ import annotations

from tilec.ir.core import Op, Value, attr, operand
from tilec.ir.layouts import Layout
from tilec.ir.types import Type


class ScratchOp(Op):
    """Base of ops that may need scratch shared memory; `offset` is its byte offset, set by
    allocate_shared, -1 when there is none."""

    offset: int = attr(int, -1, least=-1)


class ExplicitType(Op):
    """Base of ops whose single result type must be given."""

    def given(self) -> Type:
        """The result type that was given."""
        if self.results:
            return self.results[0].type
        if self.given_types is None or len(self.given_types) != 1:
            raise self.fail("needs exactly one result type")
        return self.given_types[0]


class Anchor(Op):
    """Base of ops that no pass computes anew in another layout."""

    def wanted_layout(self, num_warps: int) -> Layout | None:
        """The layout that the result must have where `num_warps` warps run the op; None leaves it
        open. Raises IRError where there is none that fits."""
        return None


class Rearrange(Op):
    """Base of ops each of whose elements is one of `x`, unchanged."""

    x: Value = operand()
