"""What ptxas makes of the PTX: order of loads, registers, no local memory."""

import re

from tests.codegen.kernels import blocked, compiled, pointers
from tilec.codegen.cubin import link, sass, sass_counts
from tilec.target import Target

LAYOUT = blocked([8], [32], [4], [0])
N = 8192


def softmax() -> str:
    wide, narrow = f"tensor<{N}xf32, {LAYOUT}>", f"tensor<{N}xbf16, {LAYOUT}>"

    def combine(op: str) -> str:
        return f"{{ ^(%l{op}: f32, %r{op}: f32):\n%c{op} = tile.{op}(%l{op}, %r{op}) : f32\n" \
            f"scf.yield(%c{op})\n}} : f32"

    return "\n".join([
        pointers("x", "bf16", (N,), LAYOUT), pointers("o", "bf16", (N,), LAYOUT),
        f"%n_s = tile.splat(%n) : tensor<{N}xi32, {LAYOUT}>",
        f'%m = tile.cmp(%x0, %n_s) {{predicate = "lt"}} : tensor<{N}xi1, {LAYOUT}>',
        f"%e = tile.constant() {{value = -inf}} : {narrow}",
        f"%v = tile.load(%xp, %m, %e) : {narrow}", f"%w = tile.cast(%v) : {wide}",
        f"%a = tile.reduce(%w) {{axis = 0}} {combine('maximum')}",
        f"%as = tile.splat(%a) : {wide}", f"%d = tile.sub(%w, %as) : {wide}",
        f"%p = tile.exp(%d) : {wide}", f"%s = tile.reduce(%p) {{axis = 0}} {combine('add')}",
        f"%ss = tile.splat(%s) : {wide}", f"%q = tile.div(%p, %ss) : {wide}",
        f"%r = tile.cast(%q) : {narrow}", "tile.store(%op, %r, %m)"])


def test_softmax_loads_first_and_moves_16_bytes_at_a_time() -> None:
    target = Target.parse("sm_90a")
    params = ("%x: ptr<bf16> {divisibility = 16}, %o: ptr<bf16> {divisibility = 16}, "
              "%n: i32 {divisibility = 16}")
    llir, _, ptx = compiled(params, softmax(), 4, "sm_90a")
    assert re.findall(r"(?:ld|st)\.global\S*", ptx) == ["ld.global.v4.b32"] * 8 + \
        ["st.global.v4.b32"] * 8
    assert llir.shared_bytes == 32 and ptx.count("bar.sync") == 2
    result = link(ptx, target, name=llir.name)
    assert result.n_spills == 0 and result.stack == 0
    text = sass(result.cubin)
    counts = sass_counts(text)
    assert counts["LDG"] == counts["STG"] == 8 and counts["MUFU"] <= 65
    lines = [x for x in text.splitlines() if "LDG" in x or "FMNMX" in x]
    assert all("LDG" in x for x in lines[:8]), "a load waits for the use of an earlier one"
