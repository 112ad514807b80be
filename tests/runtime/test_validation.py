"""TILEC_VALIDATE: passes that are wrong in different ways are named with the op, its line and both
values; what only looks wrong is not."""

from __future__ import annotations

import re
import traceback

import numpy as np
import pytest

import tilec
from tests.runtime.support import from_text
from tilec import compiler, knobs
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.passes.async_dots import AsyncDots
from tilec.passes.base import Pass
from tilec.passes.canonicalize import Canonicalize
from tilec.passes.coalesce import Coalesce
from tilec.passes.cse import Cse
from tilec.passes.dce import Dce
from tilec.passes.form_fma import FormFma
from tilec.passes.insert_barriers import InsertBarriers
from tilec.passes.licm import Licm
from tilec.passes.pipeline import Pipeline
from tilec.runtime.inputs import Unmet, inputs_for
from tilec.runtime.validation import Miscompiled, Tolerance, Validator

SOURCE = """
@tilec.jit
def k(x_ptr, out_ptr, count_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + cols, mask=cols < n, other=0.0)
    y = (x - tl.max(x, axis=0)) * 3.0
    y = y / (1.0 + tl.sum(x * x, axis=0))
    tl.store(out_ptr + tl.program_id(0) * n + cols, y, mask=cols < n)
    tl.atomic_add(count_ptr + n, 1)
"""
PRODUCT = """
@tilec.jit
def k(a_ptr, b_ptr, c_ptr, K, N: tl.constexpr):
    i = tl.arange(0, N)
    acc = tl.zeros((N, N), tl.float32)
    for k in range(0, K, N):
        a = tl.load(a_ptr + i[:, None] * K + (k + i)[None, :])
        b = tl.load(b_ptr + (k + i)[:, None] * N + i[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + i[:, None] * N + i[None, :], acc)
"""
SIGNATURE = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "count_ptr": "*i32", "n": "i32"}
DOTS = {"a_ptr": "*bf16:16", "b_ptr": "*bf16:16", "c_ptr": "*fp32:16", "K": "i32:16"}


def compiled(source=SOURCE, signature=SIGNATURE, constexprs=None, **options):
    with knobs.scope(validate=True, cache=False):
        return tilec.compile(from_text(source), signature, constexprs or {"BLOCK": 128}, **options)


def plant(monkeypatch, cls, wrong, after=True):
    """Make a pass run `wrong`, too."""
    right = cls.run

    def run(self, module):
        if after:
            right(self, module)
        wrong(module)

    monkeypatch.setattr(cls, "run", run)


def first(module, kind, holds=lambda op: True):
    return next((op for op in module.walk() if isinstance(op, kind) and holds(op)), None)


def change_a_constant(module):
    first(module, ops.Constant, lambda op: op.value in (3.0, 4.0)).value = 4.0


def swap_operands(module):
    op = first(module, ops.Sub)
    op.set_operands([op.rhs, op.lhs])


def widen_the_mask(module):
    first(module, ops.Cmp).predicate = "le"


def drop_a_store(module):
    if (op := first(module, ops.Store)) is not None:
        op.erase()


def add_twice(module):
    op = first(module, ops.AtomicRmw)
    op.parent.insert(ops.AtomicRmw(op.ptr, op.value, kind="add", loc=op.loc), op)


def wait_for_less(module):
    for op in module.walk():
        if isinstance(op, ops.AsyncWait):
            op.pending = op.pending + 1


FAULTS = {  # pass, fault, line of SOURCE at fault, text
    "a constant": (Canonicalize, change_a_constant, 6, r"tile.constant\(\) \{value = 4.0\} : "
                   r".* 4.0, was 3.0, at \[0\]"),
    "operands": (Licm, swap_operands, 6, r"tile.sub\(.*: .*, was "),
    "a mask": (Cse, widen_the_mask, 5, r"tile.cmp\(.*le.*: .*, was "),
    "a store": (Dce, drop_a_store, None, r"out_ptr: \d+ of \d+ elements differ, the first at "
                r"\[\d+\]: .*, expected "),
    "an atomic": (Coalesce, add_twice, 9, r"count_ptr: 1 of 32768 .*stored by `.*atomic_rmw"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_pass_is_named_with_op_line_and_values(monkeypatch, fault):
    cls, wrong, line, text = FAULTS[fault]
    plant(monkeypatch, cls, wrong)
    with pytest.raises(Miscompiled) as e:
        compiled()
    assert re.search(text, e.value.message, re.DOTALL), e.value.message
    assert f"pass `{cls.name}` changes what @k " in e.value.message
    assert (e.value.loc.line if e.value.loc else None) == line, str(e.value)


def test_a_wait_that_is_too_short_is_named(monkeypatch):
    plant(monkeypatch, Pipeline, wait_for_less)
    with pytest.raises(Miscompiled, match="may still be copying"):
        compiled(PRODUCT, DOTS, {"N": 64}, target="sm_80")


def test_a_product_that_is_waited_for_too_late_is_named(monkeypatch):
    """Seen in loops alone that are longer than a pipeline: the first input has such."""
    def wait(module):
        first(module, ops.WgmmaWait, lambda op: op.pending == 1).pending = 2

    plant(monkeypatch, AsyncDots, wait)
    with pytest.raises(Miscompiled, match="writes a buffer that .*wgmma .* may still read") as e:
        compiled(PRODUCT, DOTS, {"N": 64})
    frames = traceback.extract_tb(e.value.__traceback__)
    assert not any("/tilec/" in f.filename for f in frames)


def test_a_missing_barrier_is_named(monkeypatch):
    plant(monkeypatch, InsertBarriers, lambda module: None, after=False)
    with pytest.raises(Miscompiled, match=r"pass `insert_barriers` changes what @k does: it fails: "
                       r"(.|\n)*with no barrier between"):
        compiled(PRODUCT, DOTS, {"N": 64}, target="sm_80")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_right_passes_are_silent(capsys, target):
    compiled(target=target)
    compiled(PRODUCT, DOTS, {"N": 64}, target=target)
    assert capsys.readouterr().err == ""


def module_of(body, args="%p: ptr<f32>, %q: ptr<i32>, %n: i32"):
    return parse(f'module attributes {{level = "tile", num_warps = 4}} {{\n  func @k({args}) {{\n'
                 f"{body}\n    func.return()\n  }}\n}}\n")


def test_what_depends_on_the_order_of_programs_is_nobodys_fault():
    text = """    %i = tile.program_id() {axis = 0} : i32
    %f = tile.cast(%i) : f32
    tile.store(%p, %f)
    %at = tile.addptr(%q, %n) : ptr<i32>
    tile.store(%at, %n)"""
    module = module_of(text)
    validator = Validator(module, "k")

    class Reverse(Pass):
        """Numbers programs the other way round."""

    Reverse.name = "reverse"
    op = first(module, ops.Cast)
    new = ops.Sub(op.parent.insert(ops.Constant(value=1, types=[op.x.type]), op).result, op.x)
    op.parent.insert(new, op)
    op.set_operand(0, new.result)
    assert validator.step(Reverse(), module) is None
    first(module, ops.Store, lambda s: s.value is module.funcs[0].args[2]).erase()
    assert "q: 1 of" in validator.step(Reverse(), module).message


def test_inputs_meet_what_a_kernel_asks_for():
    module = module_of("""    %c = tile.constant() {value = 64} : i32
    %m = tile.constant() {value = 13} : i32
    %r = tile.rem(%c, %n) : i32
    %t = tile.sub(%n, %m) : i32
    %z = tile.constant() {value = 0} : i32
    %a = tile.cmp(%r, %z) {predicate = "eq"} : i1
    %b = tile.cmp(%t, %z) {predicate = "gt"} : i1
    %ab = tile.and(%a, %b) : i1
    tile.assume(%ab)
    tile.store(%q, %n)""")
    numbers = {inputs_for(module, module.funcs[0], seed, 1000)[0].args[2] for seed in range(4)}
    assert numbers <= {16, 32, 64} and numbers
    inputs, (after, _) = inputs_for(module, module.funcs[0], 0, 1000)
    assert after[1][0] == inputs.args[2] and (after[1][1:] == inputs.args[1][1:]).all()


def test_inputs_that_cannot_be_found_are_said(monkeypatch, capsys):
    module = module_of("""    %z = tile.cmp(%n, %n) {predicate = "ne"} : i1
    tile.assume(%z)""")
    with pytest.raises(Unmet, match="does not hold"):
        inputs_for(module, module.funcs[0], 0, 1000)
    compiled(SOURCE.replace("    cols", "    tl.assume(n < -n)\n    cols", 1))
    assert "@k is not validated: no input was found that it takes: " in capsys.readouterr().err


def test_a_run_that_does_not_end_is_no_input():
    module = module_of("""    %r = scf.while(%n) { ^(%a: i32):
      %z = tile.cmp(%a, %a) {predicate = "eq"} : i1
      scf.condition(%z, %a)
    }, { ^(%b: i32):
      scf.yield(%b)
    } : i32""")
    with pytest.raises(Unmet, match="it does not end"):
        inputs_for(module, module.funcs[0], 0, 300)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tolerances(rng, dtype):
    x = rng.normal(size=100).astype(dtype)
    x[:3] = np.nan, np.inf, 0.0
    y = x.copy()
    assert Tolerance().same(x, y).all()
    y[5] = np.nextafter(y[5], dtype(9))
    y[2], x[3] = dtype(-0.0), np.nan
    assert np.flatnonzero(~Tolerance().same(x, y)).tolist() == [2, 3, 5]
    assert np.flatnonzero(~Tolerance(32).same(x, y)).tolist() == [3]
    y[7] += dtype(70 * np.finfo(dtype).eps) * np.abs(x[4:]).max()
    assert np.flatnonzero(~Tolerance(32).same(x, y)).tolist() == [3, 7]


def test_the_passes_that_round_say_so():
    assert {s.run.name for s in compiler.PIPELINE if s.run.reorders} == {"combine", "form_fma"}
    assert not any(s.run.tolerance for s in compiler.PIPELINE)


SUMS = """    %c = tile.mul(%x, %y) : f32
    %d = tile.add(%c, %z) : f32
    tile.store(%p, %d)"""


@pytest.mark.parametrize("wrong", [False, True])
def test_a_pass_that_rounds_otherwise_is_held_to_the_ring(wrong, monkeypatch):
    module = module_of(SUMS, "%p: ptr<f32>, %x: f32, %y: f32, %z: f32")
    if wrong:
        plant(monkeypatch, FormFma, lambda m: first(m, ops.Fma).set_operand(
            2, first(m, ops.Fma).operands[1]))
    validator = Validator(module, "k")
    FormFma().run(module)
    found = validator.step(FormFma(), module)
    assert (found is not None) == wrong
    monkeypatch.setattr(FormFma, "reorders", False)
    module = module_of(SUMS, "%p: ptr<f32>, %x: f32, %y: f32, %z: f32")
    validator = Validator(module, "k", cases=9)
    FormFma().run(module)
    assert validator.step(FormFma(), module) is not None
    monkeypatch.setattr(FormFma, "tolerance", 4)
    module = module_of(SUMS, "%p: ptr<f32>, %x: f32, %y: f32, %z: f32")
    validator = Validator(module, "k", cases=9)
    FormFma().run(module)
    assert (validator.step(FormFma(), module) is None) == (not wrong)
