"""The tools on a kernel whose tensor maps the launch makes: example 09 at every level."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.tools import bisect, compile, run, sim

KERNEL = f"{Path(__file__).parents[2] / 'examples' / '09_descriptor_matmul.py'}:matmul_kernel"
SIGNATURE = "tensordesc<fp16[64, 32]>:16, tensordesc<fp16[32, 64]>:16, " \
    "tensordesc<fp16[64, 64]>:16, 8"
ARGS = [f"--arg={text}" for array in ("64x64:fp16:0", "64x64:fp16:1", "64x64:fp16:zeros")
        for text in (array, "64", "64", "64")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("levels")
    assert compile.main([KERNEL, f"--signature={SIGNATURE}", f"--output={made}"]) == 0
    return made


def test_every_file_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = set()
    for suffix in ("tile.tir", "gpu.tir", "lowered.tir", "ll", "ptx"):
        assert run.main([str(folder / f"matmul_kernel.{suffix}"), *ARGS]) == 0
        shown.add(capsys.readouterr().out)
    assert "wgmma.mma_async" in (folder / "matmul_kernel.ptx").read_text()
    assert sim.main([str(folder / "matmul_kernel.ptx"), "--check", *ARGS]) == 0
    shown.add(capsys.readouterr().out)
    assert len(shown) == 1 and "arg 8: 64x64 float16" in shown.pop()


def test_bisect(capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect.main([KERNEL, f"--signature={SIGNATURE}", *ARGS]) == 0
    assert "no step changes the result" in capsys.readouterr().out
