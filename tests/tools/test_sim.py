"""tilec-sim: arrays, checks and counts from the command line; TILEC_CHECK; kernel.simulate."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.sim.programs import program
from tilec import knobs
from tilec.errors import LaunchError, SimulatorError
from tilec.tools import run, sim

ARRAYS = ["--arg", "64:u32:zeros", "--arg", "64:u32:arange"]
SHARED = ".reg .b32 %s; .shared .align 16 .b8 buffer[512]; mov.u32 %s, buffer; " \
    "mad.lo.u32 %s, %t, 4, %s; "
SWAP = SHARED + "st.shared.b32 [%s], %t; {} xor.b32 %r1, %t, 33; mov.u32 %r2, buffer; " \
    "mad.lo.u32 %r1, %r1, 4, %r2; ld.shared.b32 %r3, [%r1]; st.global.b32 [%o], %r3;"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "k.ptx"
    path.write_text(program(SWAP.format("bar.sync 0;")))
    return path


@pytest.fixture
def racy(tmp_path):
    path = tmp_path / "racy.ptx"
    path.write_text(program(SWAP.format("")))
    return path


def test_arrays_and_table(file, capsys):
    assert sim.main([str(file), *ARRAYS, "--check", "--count"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("arg 0: 64 uint32\n[33 32 35")
    assert "k: " in out and "shared store" in out and "python line" in out and "arg 1" not in out
    assert sim.main([str(file), *ARRAYS, "--kernel", "k", "--count", "--by", "ptx", "--block", "64",
                     "--shared", "16", "--seed", "2", "--grid", "1,1,1"]) == 0
    assert "bar.sync 0;" in capsys.readouterr().out


def test_json_is_all_that_is_printed(file, capsys):
    assert sim.main([str(file), *ARRAYS, "--count=json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["classes"]["barrier"] == 2  # warps
    assert {(m["space"], m["access"]) for m in data["memory"]} == {
        ("shared", "load"), ("shared", "store"), ("global", "store")}


def test_checks_are_asked_for(racy, capsys):
    assert sim.main([str(racy), *ARRAYS]) == 0
    assert capsys.readouterr().err == ""
    assert sim.main([str(racy), *ARRAYS, "--check"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"tilec-sim: {racy}: k, CTA (0, 0, 0): thread ") and "race" in err


def test_the_flag_checks_tilec_run(racy, capsys):
    with knobs.scope(check=False):
        assert run.main([str(racy), *ARRAYS]) == 0
    with knobs.scope(check=True):
        assert run.main([str(racy), *ARRAYS]) == 1
    assert "race" in capsys.readouterr().err


@pytest.mark.parametrize("more, message", [
    (["--kernel", "j"], "no kernel `j`"), (["--block", "32"], ".reqntid 64"),
    (["--grid", "0.5"], "--grid is"), (["--arg", "1"], "takes 2 arguments"),
])
def test_errors(file, capsys, more, message):
    assert sim.main([str(file), *ARRAYS, *more]) == 1
    assert message in capsys.readouterr().err
    assert sim.main([str(file.parent / "none.ptx")]) == 1


# -- CompiledKernel.simulate ----------------------------------------------------------------------

@tilec.jit
def shift(x_ptr, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + i + 1, mask=i + 1 < n, other=0)
    tl.store(x_ptr + i, x, mask=i < n)


def test_simulate():
    x = np.arange(128, dtype=np.int32)
    kernel = shift.warmup(x, 128, grid=(1,), B=128, num_warps=4, target="sm_90a")
    counts = kernel.simulate({"x_ptr": x, "n": 128}, 1, seed=1)
    assert x.tolist() == [*range(1, 128), 0]
    assert counts.memory["global", "load"]["bytes"] == 127 * 4
    assert str(counts) == counts.table() and "shift: " in str(counts)
    assert kernel.simulate([x, 128], (1,), count=False) is None
    with pytest.raises(LaunchError, match="expected 2"):
        kernel.simulate([x], 1)


def test_simulate_raises_and_keeps_the_arrays():
    x = np.arange(256, dtype=np.int32)
    kernel = shift.warmup(x, 256, grid=(2,), B=128, num_warps=4, target="sm_90a")
    with pytest.raises(SimulatorError, match="race: it (reads|writes) global address .* of CTA"
                       ) as caught:
        kernel.simulate([x, 256], 2)
    assert "test_sim.py" in str(caught.value) and "PTX line" in str(caught.value)
    assert x.tolist() == list(range(256))
    kernel.simulate([x, 256], 2, check=False)
    with knobs.scope(check=True), pytest.raises(SimulatorError, match="race"):
        kernel.run([x, 256], 2, level="ptx")
    with knobs.scope(check=False):
        kernel.run([x, 256], 2, level="ptx")


def test_files_of_other_tools(tmp_path, capsys):
    path = tmp_path / "k.tir"
    path.touch()
    assert sim.main([str(path)]) == 1
    assert capsys.readouterr().err == (f"tilec-sim: {path}: expected a .ptx file\n"
                                       f"  help: `tilec-run {path}` runs it\n")
