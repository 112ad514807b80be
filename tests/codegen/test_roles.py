"""Warp roles at every level below gpu: threads, barriers, scratch and registers of their own."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilec.codegen.lower import to_llir
from tilec.compiler import compile_from
from tilec.errors import CompilationError, OutOfResources
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.types import i32
from tilec.ir.verifier import verify
from tilec.runtime.text import TextKernel
from tilec.target import Target

SM_90A = Target.parse("sm_90a")
M, N = 16, 32
BAR = "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>"


def work(name: str, warps: int, number: int) -> str:
    """Takes tile `number` of x: its column sums go to s, its transpose, through a buffer, to y."""
    rows = "blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], " \
        f"warpsPerCTA = [{warps}, 1], order = [1, 0]}}>"
    columns = "blocked<{sizePerThread = [4, 1], threadsPerWarp = [8, 4], " \
        f"warpsPerCTA = [1, {warps}], order = [0, 1]}}>"
    down, across = f"slice<{{parent = {rows}, dim = 1}}>", f"slice<{{parent = {rows}, dim = 0}}>"
    summed = f"slice<{{parent = {columns}, dim = 0}}>"
    smem = "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"
    text = f"""
      %base = tile.constant() {{value = {number * M * N}}} : i32
      %first = tile.constant() {{value = {number * N}}} : i32
      %i = tile.arange() {{start = 0, end = {M}}} : tensor<{M}xi32, {down}>
      %ie = tile.expand_dims(%i) {{axis = 1}} : tensor<{M}x1xi32, {rows}>
      %n = tile.constant() {{value = {N}}} : tensor<{M}x1xi32, {rows}>
      %in = tile.mul(%ie, %n) : tensor<{M}x1xi32, {rows}>
      %ib = tile.broadcast(%in) : tensor<{M}x{N}xi32, {rows}>
      %j = tile.arange() {{start = 0, end = {N}}} : tensor<{N}xi32, {across}>
      %je = tile.expand_dims(%j) {{axis = 0}} : tensor<1x{N}xi32, {rows}>
      %jb = tile.broadcast(%je) : tensor<{M}x{N}xi32, {rows}>
      %ij = tile.add(%ib, %jb) : tensor<{M}x{N}xi32, {rows}>
      %start = tile.addptr(%x, %base) : ptr<f32>
      %xs = tile.splat(%start) : tensor<{M}x{N}xptr<f32>, {rows}>
      %xp = tile.addptr(%xs, %ij) : tensor<{M}x{N}xptr<f32>, {rows}>
      %v = tile.load(%xp) : tensor<{M}x{N}xf32, {rows}>
      %buf = gpu.alloc_shared() : memdesc<{M}x{N}xf32, {smem}>
      gpu.shared_store(%buf, %v)
      %c = gpu.shared_load(%buf) : tensor<{M}x{N}xf32, {columns}>
      %moved = gpu.convert_layout(%c) : tensor<{M}x{N}xf32, {rows}>
      %back = gpu.convert_layout(%moved) : tensor<{M}x{N}xf32, {columns}>
      %t = tile.trans(%back) {{order = [1, 0]}} : tensor<{N}x{M}xf32, {rows}>
      %up = tile.scan(%v) {{axis = 0}} {{ ^(%pu: f32, %qu: f32):
        %pqu = tile.add(%pu, %qu) : f32
        scf.yield(%pqu)
      }} : tensor<{M}x{N}xf32, {rows}>
      %down = tile.scan(%v) {{axis = 0, reverse = true}} {{ ^(%pd: f32, %qd: f32):
        %pqd = tile.add(%pd, %qd) : f32
        scf.yield(%pqd)
      }} : tensor<{M}x{N}xf32, {rows}>
      %both = tile.add(%up, %down) : tensor<{M}x{N}xf32, {rows}>
      %all = tile.sub(%both, %v) : tensor<{M}x{N}xf32, {rows}>
      %sum = tile.reduce(%all) {{axis = 0}} {{ ^(%p: f32, %q: f32):
        %pq = tile.maximum(%p, %q) : f32
        scf.yield(%pq)
      }} : tensor<{N}xf32, {across}>
      %sums = gpu.convert_layout(%sum) : tensor<{N}xf32, {summed}>
      %sj = tile.arange() {{start = 0, end = {N}}} : tensor<{N}xi32, {summed}>
      %sstart = tile.addptr(%s, %first) : ptr<f32>
      %ss = tile.splat(%sstart) : tensor<{N}xptr<f32>, {summed}>
      %sp = tile.addptr(%ss, %sj) : tensor<{N}xptr<f32>, {summed}>
      tile.store(%sp, %sums)
      %ystart = tile.addptr(%y, %base) : ptr<f32>
      %ti = tile.reshape(%ij) : tensor<{N}x{M}xi32, {rows}>
      %ys = tile.splat(%ystart) : tensor<{N}x{M}xptr<f32>, {rows}>
      %yp = tile.addptr(%ys, %ti) : tensor<{N}x{M}xptr<f32>, {rows}>
      tile.store(%yp, %t)
      %count = tile.constant() {{value = {number}}} : i32
      %cp = tile.addptr(%who, %count) : ptr<i32>
      %once = tile.atomic_rmw(%cp, %one) {{kind = "add"}} : i32
"""
    return re.sub(r"%(?!x\b|y\b|s\b|who\b|one\b)(\w+)", rf"%{name}_\1", text)


def kernel(roles: tuple[int, ...], before: str = "", after: str = "") -> Module:
    bodies = "".join(f"gpu.warp_role() {{warps = {w}}} {{\n{work(f'r{i}', w, i)}\nscf.yield()\n}}\n"
                     for i, w in enumerate(roles))
    m = parse(f"""
module attributes {{level = "gpu", num_warps = {sum(roles)}, target = "sm_90a"}} {{
  func @k(%x: ptr<f32>, %y: ptr<f32>, %s: ptr<f32>, %who: ptr<i32>) {{
    %one = tile.constant() {{value = 1}} : i32
    {before}
    gpu.warp_specialize() {{
{bodies}
      scf.yield()
    }}
    {after}
    func.return()
  }}
}}""")
    verify(m)
    return m


def arguments(count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(count)
    x = rng.integers(-99, 100, (count, M, N)).astype(np.float32)
    poison = [np.full((count, N, M), np.nan, np.float32), np.full((count, N), np.nan, np.float32)]
    want = [x.transpose(0, 2, 1), x.sum(1), np.ones(count, np.int32)]
    return [x, *poison, np.zeros(count, np.int32)], want


@pytest.mark.parametrize("level", ["gpu", "lowered", "ptx"])
@pytest.mark.parametrize("roles", [(4, 4), (1, 2, 4, 1), (2, 1, 1), (8, 4, 2), (1,)], ids=str)
def test_work_in_roles(roles: tuple[int, ...], level: str) -> None:
    """Loads, conversions, scans, reductions, buffers, one thread's atomics: each role's results are
    what they are alone, in any order of warps."""
    made = TextKernel(kernel(roles))
    for seed in (None, 1, 2):
        args, want = arguments(len(roles))
        made.run(args, 1, level, seed=seed)
        for got, expected in zip(args[1:], want, strict=True):
            np.testing.assert_array_equal(got, expected, f"{level}, seed {seed}")


def test_no_two_roles_share_memory() -> None:
    """Buffers and scratch of roles are apart, though the text uses one's after the other's; within
    a role they are used again."""
    m = kernel((4, 4, 2))
    compile_from(m, SM_90A, "lowered")
    taken: list[list[tuple[int, int]]] = []
    for role in (op for op in m.walk() if isinstance(op, ops.WarpRole)):
        offsets = [op.attributes["offset"] for op in role.body.walk() if
                   op.attributes.get("offset", -1) >= 0]
        taken.append([(min(offsets), max(offsets))])
    spans = sorted(span for role in taken for span in role)
    assert all(high < low for (_, high), (low, _) in zip(spans, spans[1:]))


def test_barriers_of_roles() -> None:
    """Each role of several warps has a barrier of its own, for its threads alone; one warp needs
    none. All meet at the end, unless the kernel ends there."""
    text = compile_from(kernel((4, 2, 1, 1)), SM_90A, "ptx").ptx
    found = set(re.findall(r"bar\.sync\s+(\d+), (\d+);", text))
    # Barriers 1 and 2 are the warpgroups' outside, 4 is the first role's warpgroup's.
    assert found == {("3", "128"), ("5", "64")}
    assert "bar.warp.sync" in text and not re.search(r"bar\.sync\s+0;", text)
    more = "%c = tile.addptr(%who, %one) : ptr<i32>\n%z = tile.constant() {value = 0} : i32\n" \
        "%none = tile.atomic_rmw(%c, %z) {kind = \"add\"} : i32"
    assert re.search(r"bar\.sync\s+0;", compile_from(kernel((4, 4), after=more), SM_90A, "ptx").ptx)


@pytest.mark.parametrize("level", ["gpu", "lowered", "ptx"])
def test_before_and_after(level: str) -> None:
    """What all warps did before, roles see, and what roles did, all warps see after."""
    layout = "blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [8], order = [0]}>"
    count = 2 * M * N
    head = f"""
    %e = tile.arange() {{start = 0, end = {count}}} : tensor<{count}xi32, {layout}>
    %xs = tile.splat(%x) : tensor<{count}xptr<f32>, {layout}>
    %xp = tile.addptr(%xs, %e) : tensor<{count}xptr<f32>, {layout}>
    %f = tile.cast(%e) : tensor<{count}xf32, {layout}>
    tile.store(%xp, %f)"""
    tail = f"""
    %ys = tile.splat(%y) : tensor<{count}xptr<f32>, {layout}>
    %yp = tile.addptr(%ys, %e) : tensor<{count}xptr<f32>, {layout}>
    %v = tile.load(%yp) : tensor<{count}xf32, {layout}>
    %vv = tile.add(%v, %v) : tensor<{count}xf32, {layout}>
    tile.store(%yp, %vv)"""
    args, _ = arguments(2)
    x = np.arange(count, dtype=np.float32).reshape(2, M, N)
    TextKernel(kernel((4, 4), head, tail)).run(args, 1, level, seed=3)
    np.testing.assert_array_equal(args[0], x)
    np.testing.assert_array_equal(args[1], 2 * x.transpose(0, 2, 1))


LOOPED = f"""
module attributes {{level = "gpu", num_warps = 12, target = "sm_90a"}} {{
  func @k(%p: ptr<i32>, %n: i32) {{
    %c0 = tile.constant() {{value = 0}} : i32
    %c1 = tile.constant() {{value = 1}} : i32
    %ready = gpu.alloc_shared() : memdesc<1xi64, {BAR}>
    gpu.elect() {{
      gpu.mbarrier_init(%ready) {{count = 2}}
      scf.yield()
    }}
    gpu.barrier()
    scf.for(%c0, %n, %c1) {{ ^(%i: i32):
      %odd = tile.and(%i, %c1) : i32
      gpu.warp_specialize() {{
        gpu.warp_role() {{warps = 8}} {{
          %q = tile.addptr(%p, %i) : ptr<i32>
          tile.store(%q, %i)
          gpu.warpgroup_barrier()
          gpu.mbarrier_arrive(%ready)
          scf.yield()
        }}
        gpu.warp_role() {{warps = 4}} {{
          gpu.elect() {{warp = 3, by = "warp"}} {{
            gpu.mbarrier_wait(%ready, %odd)
            scf.yield()
          }}
          gpu.barrier()
          %far = tile.add(%n, %i) : i32
          %r = tile.addptr(%p, %far) : ptr<i32>
          tile.store(%r, %odd)
          scf.yield()
        }}
        scf.yield()
      }}
      scf.yield()
    }}
    func.return()
  }}
}}
"""


@pytest.mark.parametrize("level", ["gpu", "lowered", "ptx"])
def test_roles_in_a_loop(level: str) -> None:
    """Roles begin and meet again in each round; phases go on; warp 3 of a role is its own."""
    m = parse(LOOPED)
    verify(m)
    for seed in (None, 0, 1):
        out = np.full(10, -1, np.int32)
        TextKernel(m).run([out, 5], 1, level, seed=seed)
        assert out.tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1, 0]


def test_warp_numbers_are_the_roles() -> None:
    text = compile_from(parse(LOOPED), SM_90A, "ptx").ptx
    assert re.search(r"setp\.\w+\.\w+\s+%p\d+, %r\d+, 3;", text)
    assert re.search(r"add\.s32\s+%r\d+, %r\d+, -256;", text)  # threads of the second role
    # Warpgroup barriers: those of the first role come after its own, which is 4.
    assert re.search(r"add\.s32\s+%r\d+, %r\d+, 5;", text)
    assert re.search(r"bar\.sync %r\d+, 128;", text)


def test_prints_of_roles(capsys: pytest.CaptureFixture[str]) -> None:
    """One thread of each role prints; its buffer is the thread's, made once."""
    m = kernel((4, 2, 2))
    for i, role in enumerate(op for op in m.walk() if isinstance(op, ops.WarpRole)):
        value = role.body.insert(ops.Constant(value=i, types=[i32]), role.body.terminator)
        role.body.insert(ops.Print([value.result], prefix="role"), role.body.terminator)
    made = TextKernel(m)
    made.run(arguments(3)[0], 1, "ptx")
    lines = sorted(line for line in capsys.readouterr().out.splitlines() if "role" in line)
    assert [line.split()[-1] for line in lines] == ["0", "1", "2"]
    assert compile_from(m, SM_90A, "llir").llir_text.count("alloca") == 1


def registers(first: int, second: int, maxnreg: str = "") -> str:
    roles = "".join(f"gpu.warp_role() {{warps = {w}, registers = {r}}} {{\nscf.yield()\n}}\n"
                    for w, r in ((4, first), (8, second)))
    return f"""
module attributes {{level = "gpu", num_warps = 12, target = "sm_90a"{maxnreg}}} {{
  func @k() {{
    gpu.warp_specialize() {{
      {roles}
      scf.yield()
    }}
    func.return()
  }}
}}"""


@pytest.mark.parametrize(("first", "second", "changes"), [
    (24, 240, ["dec 24", "inc 240"]), (168, 168, []), (168, 120, ["dec 120"]),
    (184, 160, ["inc 184", "dec 160"])])
def test_registers(first: int, second: int, changes: list[str]) -> None:
    """A launch of 384 threads gives each 168; roles change that, within the launch bounds."""
    text = compile_from(parse(registers(first, second)), SM_90A, "ptx").ptx
    found = re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32 (\d+);", text)
    assert [" ".join(f) for f in found] == changes
    assert re.search(r"\.reqntid 384", text) and ".minnctapersm 1" in text
    TextKernel(parse(registers(first, second))).run([], 3, "ptx", seed=1)


def test_registers_and_a_limit_for_all_exclude_each_other() -> None:
    with pytest.raises(CompilationError, match="maxnreg is 128, and roles have registers"):
        to_llir(parse(registers(24, 240, ", maxnreg = 128")), SM_90A)


def test_too_many_warps() -> None:
    text = registers(24, 240).replace("warps = 4, registers = 24", "warps = 11").replace(
        "warps = 8, registers = 240", "warps = 22").replace("num_warps = 12", "num_warps = 33")
    with pytest.raises(OutOfResources, match="threads, required 1056"):
        compile_from(parse(text), SM_90A, "llir")
