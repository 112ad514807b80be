"""Passes follow long chains of ops without recursion, and tangled ones without going round."""

from __future__ import annotations

import pytest

from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.passes.base import parse_pipeline

LAYOUTS = "assign_layouts,coalesce,remove_layout_conversions,cse,reorder,dce"
TEXT = """module attributes {{level = "tile", num_warps = 4, target = "sm_90a"}} {{
  func @k(%p: ptr<f32> {{divisibility = 16}}, %o: ptr<f32> {{divisibility = 16}}) {{
    %r = tile.arange() {{start = 0, end = 32}} : tensor<32xi32>
    %c = tile.constant() {{value = 32}} : tensor<32x1xi32>
    %a = tile.expand_dims(%r) {{axis = 1}} : tensor<32x1xi32>
    %b = tile.expand_dims(%r) {{axis = 0}} : tensor<1x32xi32>
    %d = tile.mul(%a, %c) : tensor<32x1xi32>
    %e = tile.broadcast(%d) : tensor<32x32xi32>
    %f = tile.broadcast(%b) : tensor<32x32xi32>
    %i = tile.add(%e, %f) : tensor<32x32xi32>
    %ps = tile.splat(%p) : tensor<32x32xptr<f32>>
    %q = tile.addptr(%ps, %i) : tensor<32x32xptr<f32>>
    %v0 = tile.load(%q) : tensor<32x32xf32>
{chain}
    %t = tile.trans(%v{n}) {{order = [1, 0]}} : tensor<32x32xf32>
    %os = tile.splat(%o) : tensor<32x32xptr<f32>>
    %s = tile.addptr(%os, %i) : tensor<32x32xptr<f32>>
    tile.store(%s, %t)
    func.return()
  }}
}}
"""


@pytest.mark.parametrize(("n", "step"), [
    (1200, "%v{k} = tile.{op}(%v{before}, %v0) : tensor<32x32xf32>"),
    (60, "%v{k} = tile.{op}(%v{before}, %v{before}) : tensor<32x32xf32>")])
def test_a_conversion_at_the_end_of_a_chain(n: int, step: str) -> None:
    chain = "\n".join(step.format(k=k, before=k - 1, op=("add", "mul")[k % 2])
                      for k in range(1, n + 1))
    module = parse(TEXT.format(chain=chain, n=n))
    for p in parse_pipeline(LAYOUTS):
        p.run(module)
    verify(module)
    assert sum(op.name == "gpu.convert_layout" for op in module.walk()) == 1
