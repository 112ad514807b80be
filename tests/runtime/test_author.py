"""What an author meets around a kernel: short tracebacks, names in `repr`, kernels whose source has
changed, folders for dumps and overrides that are not there.
"""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as tl
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
    tl.atomic_cas(x_ptr + tl.arange(0, B), 0, 1)


SIGNATURE = {"x_ptr": "*fp32"}


def array(n: int = 8):
    return np.arange(n, dtype=np.float32)


@pytest.mark.parametrize("act", [
    lambda: misspelt[(1,)](array(), B=8),
    lambda: misspelt.warmup(array(), B=8),
    lambda: tilec.compile(misspelt, SIGNATURE, {"B": 8}),
    lambda: apply[(1,)](array(), double, B=16),
    lambda: apply.warmup(array(), double, B=8).run([array(4)], 1),
    lambda: apply.warmup(array(), double, B=8).run([array(4)], 1, level="ptx"),
])
def test_an_error_comes_without_the_frames_inside(act):
    with pytest.raises(tilec.TilecError) as caught:
        act()
    frames = [f for f in traceback.extract_tb(caught.value.__traceback__)
              if "tilec" in Path(f.filename).relative_to(ROOT).parts[:1]]
    assert len(frames) <= 1, frames
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


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
    with pytest.raises(tilec.CompilationError, match="`tl.atomic_cas` is not there yet"):
        swap[(1,)](array(), B=8)
    assert not [name for name in _NOT_YET if hasattr(tl, name)]


def test_a_level_of_a_kernel_whose_source_changed_since():
    x, namespace = array(), globals()
    old = namespace["double"]

    @tilec.jit
    def calls(x_ptr, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(x_ptr + i, double(tl.load(x_ptr + i)))

    kernel = calls[(1,)](x, B=8)
    tile = kernel.asm["tile"]
    try:
        @tilec.jit
        def double_(x):
            return 3 * x

        namespace["double"] = double_
        assert kernel.asm["tile"] == tile
        with pytest.raises(tilec.CompilationError, match="have changed since"):
            kernel.asm["ptx"]
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


def test_a_level_that_does_not_run_is_named_with_those_that_do():
    kernel = tilec.compile(apply, SIGNATURE, {"F": double, "B": 8})
    with pytest.raises(tilec.LaunchError, match="`llir`(?s:.*)tile, gpu, lowered, ptx and cubin"):
        kernel.run([array()], 1, level="llir")
