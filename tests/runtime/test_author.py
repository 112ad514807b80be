"""What an author meets around a kernel: short tracebacks, names in `repr`, kernels whose source has
changed, folders for dumps and overrides that are not there.
"""

from __future__ import annotations

import subprocess
import sys
import traceback
from inspect import getsourcelines
from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.support.stages import level_file
from tilec import knobs
from tilec.frontend.scope import _NOT_YET
from tilec.runtime import device

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "gpu_available", lambda: False)


@tilec.jit
def double(x):
    return 2 * x


@tilec.jit
def apply(x_ptr, F: tl.constexpr, B: tl.constexpr, C: tl.constexpr = None):
    i = tl.arange(0, B)
    tl.store(x_ptr + i, F(tl.load(x_ptr + i)))


@tilec.jit
def misspelt(x_ptr, B: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, B), tl.summ(x_ptr))


@tilec.jit
def swap(x_ptr, B: tl.constexpr):
    tl.dot_scaled(x_ptr + tl.arange(0, B), 0, 1)


@tilec.jit
def moved(a, c):
    """One block of a to c, by TMA."""
    buffer, ready = tlg.alloc_shared(a.block_shape, a.dtype), tlg.mbarrier()
    tlg.barrier()
    ready.expect(buffer.nbytes)
    tlg.tma.load(a, [0, 0], buffer, ready)
    ready.wait(0)
    c.store([0, 0], buffer.load())


@tilec.jit
def accumulated(a, b, c, K):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 64):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
        c.store([0, 0], acc.to(tl.float16))


@tilec.jit
def blocks(x_ptr, B: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, B), 1.0)


SIGNATURE = {"x_ptr": "*fp32"}


def array(n: int = 8):
    return np.arange(n, dtype=np.float32)


def described(*shape: int, block: tuple[int, int] = (64, 64)):
    return tilec.TensorDescriptor.from_tensor(np.zeros(shape, np.float16), block)


def made(kernel=apply, **constants):
    return tilec.compile(kernel, SIGNATURE, {"F": double, "B": 8} if kernel is apply else constants)


def flagged(name: str, value: str):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        blocks[(1,)](array(), B=8)


def unreadable():
    namespace = {"tilec": tilec}
    exec("def of_no_file(a): pass", namespace)
    tilec.jit(namespace["of_no_file"])


def assigned(name: str):
    setattr(knobs, name, 1)


@pytest.mark.parametrize("act", [
    lambda: misspelt[(1,)](array(), B=8),
    lambda: misspelt.warmup(array(), B=8),
    lambda: tilec.compile(misspelt, SIGNATURE, {"B": 8}),
    lambda: apply[(1,)](array(), double, B=16),
    lambda: apply.warmup(array(), double, B=8).run([array(4)], 1),
    lambda: apply.warmup(array(), double, B=8).run([array(4)], 1, level="ptx"),
    lambda: flagged("TILEC_RUN", "til"),
    lambda: flagged("TILEC_REMARKS", "maybe"),
    lambda: knobs.scope(run="til"),
    lambda: assigned("run"),
    lambda: tilec.compile(apply, {"x_ptr": "*fp33"}, {"F": double, "B": 8}),
    lambda: blocks[(1,)](array(), B=8, num_wraps=4),
    lambda: blocks[(-1,)](array(), B=8),
    lambda: blocks[(1,)](array(), B=8, target="hopper"),
    lambda: blocks[(1,)](array(), B=lambda: 8),
    lambda: blocks.warmup(array()),
    lambda: blocks(array()),
    lambda: tilec.heuristics({"B": lambda args: 8})(blocks)[(1,)](array(), 8),
    lambda: tilec.heuristics({"C": lambda args: 8})(blocks)[(1,)](array()),
    lambda: tilec.autotune([tilec.Config({"B": 8})], key=[])(blocks)[(1,)](array(), B=8),
    lambda: tilec.autotune([tilec.Config({"C": 8})], key=[])(blocks)[(1,)](array()),
    lambda: tilec.autotune([tilec.Config({"B": 8})], key=[])(array),
    lambda: made().run([array(), array(), array(), array(), array()], 1),
    lambda: made().simulate([array()], -1),
    lambda: made().asm["sas"],
    lambda: moved[(1,)](tilec.TensorDescriptor.from_tensor(np.zeros((64, 64), np.float16).T,
                                                           (64, 64)), described(64, 64)),
    lambda: tilec.TensorDescriptor(array(), "8", [1], [8]),
    lambda: tilec.TensorDescriptor.from_tensor("text", [8]),
    lambda: setattr(described(64, 64), "shape", 8),
    lambda: tilec.jit(lambda x: x),
    lambda: tilec.jit(num_wraps=4),
    unreadable,
    lambda: tl.load(0),
])
@pytest.mark.cubins
def test_an_error_comes_without_the_frames_inside(act):
    with pytest.raises(tilec.TilecError) as caught:
        act()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == __file__
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def same(kernel):
    c = described(64, 64)
    kernel[(1,)](described(64, 128), c, c, 128, target="sm_90a")


# what is done; the kernel; message and help
REFUSED = {
    "rows": (lambda: moved[(1,)](described(64, 201), described(64, 64)), moved,
             "argument `a` has strides of (402, 2) bytes, expected multiples of 16 below 2**40",
             "TMA copies no other tensors; copy it into one that fits"),
    "empty": (lambda: moved[(1,)](described(0, 64), described(64, 64)), moved,
              "argument `a` has the shape (0, 64), expected extents from 1 to 2**31 - 1",
              "do not launch for an empty tensor"),
    "one buffer": (lambda: same(accumulated), accumulated, "`b` and `c` overlap",
                   "TMA moves blocks of one of them, in no order with what the kernel does to the "
                   "other: pass two buffers, or make them one argument, which TMA leaves alone"),
    "cluster": (lambda: blocks[(3,)](array(), B=8, num_ctas=2), blocks,
                "`blocks` has a grid of 3 programs along axis 0, expected a multiple of num_ctas, "
                "which is 2",
                "launch more programs, which have nothing to do, or a smaller num_ctas"),
    "type": (lambda: made(blocks, B=8).run([array().astype(np.float16)], 1), blocks,
             "argument `x_ptr`: it holds fp16, expected fp32",
             "convert the array, or compile the kernel for fp16"),
    "number": (lambda: made().run([3.0], 1), apply,
               "argument `x_ptr`: it is 3.0, expected an array",
               "pass an array of numpy, torch or cupy"),
    "count": (lambda: made().run([array()] * 3, 1), apply,
              "`apply` got 3 arguments, expected 1: x_ptr",
              "pass them in this order; constexprs may be left out"),
    "constant": (lambda: made(blocks, B=8).run([array()] * 2, 1), blocks,
                 "`blocks` was compiled for B = 8, not ndarray of shape (8,)",
                 "compile it for these arguments"),
    "grid": (lambda: blocks[(1, 2, 3, 4)](array(), B=8), blocks,
             "grid is (1, 2, 3, 4), expected 1 to 3 integers of 0 or more",
             "write it as (n,), (x, y) or (x, y, z); tilec.cdiv gives integers"),
    "rank": (lambda: moved[(1,)](described(64, 64, block=(64,)), described(64, 64)), moved,
             "argument `a`: a TensorDescriptor has shape (64, 64), strides (64, 1) and blocks of "
             "(64,), expected equal numbers of dimensions",
             "give an extent, a stride and a block's extent for each dimension of the tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_launch_error_shows_the_kernel(case):
    act, kernel, message, advice = REFUSED[case]
    with pytest.raises(tilec.LaunchError) as caught:
        act()
    lines, first = getsourcelines(kernel.fn)
    assert str(caught.value) == (f"{__file__}:{first + 1}:1: {message}\n    {lines[1]}    ^\n"
                                 f"  help: {advice}")


@pytest.mark.parametrize("level", ["tile", "gpu", "lowered", "ptx"])
@pytest.mark.parametrize("case", ["rows", "empty", "one buffer"])
def test_what_tma_cannot_serve_is_refused_at_every_level(case, level):
    act, _, message, _ = REFUSED[case]
    with knobs.scope(run=level), pytest.raises(tilec.LaunchError) as caught:
        act()
    assert caught.value.message == message


def test_an_unknown_entry_of_asm():
    with pytest.raises(KeyError) as caught:
        made().asm["sas"]
    assert str(caught.value) == "asm has no `sas`\n  help: did you mean `sass`?"
    assert "sas" not in made().asm and made().asm.get("sas") is None


def test_a_kernel_without_a_source():
    code = "import tilec\n@tilec.jit\ndef k(a): pass\n"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True,
                           capture_output=True).stderr
    assert shown == """Traceback (most recent call last):
  File "<string>", line 2, in <module>
tilec.errors.CompilationError: <string>:2:1: the source of `k` cannot be read
  help: define it in a file or a notebook cell; for code run by `exec`, put its text into \
`linecache.cache` first
"""


def test_development_mode_keeps_the_frames():
    code = ("import numpy as np\nfrom tests.runtime.test_author import misspelt\n"
            "misspelt[(1,)](np.zeros(8, np.float32), B=8)")
    shown = [subprocess.run([sys.executable, *flags, "-c", code], cwd=ROOT, text=True,
                            capture_output=True).stderr for flags in ([], ["-X", "dev"])]
    assert all("did you mean `tl.sum`?" in text for text in shown)
    assert ["visit_attribute" in text for text in shown] == [False, True]


def test_repr_has_every_constexpr():
    kernel = tilec.compile(apply, SIGNATURE, {"F": double, "B": 8})
    assert "F=double, B=8, C=None)" in repr(kernel)


def test_a_name_of_triton_that_is_not_there_yet():
    with pytest.raises(tilec.CompilationError, match="`tl.dot_scaled` is not there yet"):
        swap[(1,)](array(), B=8)
    assert not [name for name in _NOT_YET if hasattr(tl, name)]


def test_a_level_of_a_kernel_whose_source_changed_since():
    x, namespace = array(), globals()
    old = namespace["double"]

    @tilec.jit
    def calls(x_ptr, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(x_ptr + i, double(tl.load(x_ptr + i)))

    with tilec.knobs.scope(run="ptx"):
        kernel = calls[(1,)](x, B=8)
    ptx = kernel.asm["ptx"]
    try:
        @tilec.jit
        def double_(x):
            return 3 * x

        namespace["double"] = double_
        assert kernel.asm["ptx"] == ptx
        with pytest.raises(tilec.CompilationError, match="have changed since"):
            kernel.asm["tile"]
        again = calls[(1,)](x, B=8)
        assert again is not kernel and "value = 3.0" in again.asm["tile"]
        assert x.tolist() == (6 * array()).tolist()
    finally:
        namespace["double"] = old
    assert ".visible .entry" in kernel.asm["ptx"]


def test_an_edited_file_is_announced_once(tmp_path, capsys):
    x = array()
    with knobs.scope(dump_dir=str(tmp_path)):
        apply[(1,)](x, double, B=8)
    [file] = tmp_path.glob(f"apply-*/{level_file('tile')}")
    file.write_text(file.read_text().replace("value = 2.0", "value = 5.0"))
    capsys.readouterr()
    with knobs.scope(override_dir=str(tmp_path)):
        x = array()
        kernel = apply[(1,)](x, double, B=8)
        kernel.run([x], 1, level="ptx")
    assert x.tolist() == (25 * array()).tolist()
    assert capsys.readouterr().err.count(f"`apply` goes on from {file}\n") == 1


def test_folders_that_cannot_be_used(tmp_path):
    with knobs.scope(override_dir=str(tmp_path / "none")), \
            pytest.raises(tilec.TilecError, match="TILEC_OVERRIDE_DIR.* no folder(?s:.*)DUMP_DIR"):
        apply[(1,)](array(), double, B=8)
    (tmp_path / "file").touch()
    with knobs.scope(dump_dir=str(tmp_path / "file")), \
            pytest.raises(tilec.TilecError, match="TILEC_DUMP_DIR: .* cannot be made"):
        apply[(1,)](array(), double, B=8)


def test_a_disk_that_is_full(tmp_path, capsys):
    with knobs.scope(dump_dir=str(tmp_path), cache=False):
        tilec.compile(apply, SIGNATURE, {"F": double, "B": 8})
        [file] = tmp_path.glob(f"apply-*/{level_file('tile')}")
        file.unlink()
        file.symlink_to("/dev/full")
        kernel = tilec.compile(apply, SIGNATURE, {"F": double, "B": 8})
        assert "cannot be written: No space left on device" in capsys.readouterr().err
        assert ".visible .entry apply" in kernel.asm["ptx"]


def test_a_level_that_does_not_run_is_named_with_those_that_do():
    kernel = tilec.compile(apply, SIGNATURE, {"F": double, "B": 8})
    with pytest.raises(tilec.LaunchError, match="`llir`(?s:.*)tile, gpu, lowered, ptx and cubin"):
        kernel.run([array()], 1, level="llir")
