"""PTX that tilec emits for kernels of every sort, with arguments to launch it in the simulator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import ml_dtypes
import numpy as np

import tilec
from benchmarks.common import load_example
from tests.support import hopper
from tests.support.fixtures import fixture
from tests.support.matmul import matmul, product
from tests.test_dot import attention
from tests.test_levels import atomic_kernel, poisoned, reduce_kernel, shape_kernel
from tilec.compiler import compile_from
from tilec.sim import TensorMap
from tilec.target import Target

Array = np.ndarray[Any, Any]


class Launch(NamedTuple):
    """What tilec.sim.run is given."""

    ptx: str
    kernel: str
    args: list[Any]
    grid: tuple[int, int, int]
    threads: int
    shared: int

    def run(self, ptx: str = "", seed: int | None = None, check: bool = False) -> list[Array]:
        """The arrays after a run of this PTX or another."""
        mine = [fresh(a) for a in self.args]
        tilec.sim.run(ptx or self.ptx, self.kernel, mine, self.grid, self.threads,
                      shared_bytes=self.shared, seed=seed, check=check, max_steps=20_000)
        held = [a.array if isinstance(a, TensorMap) else a for a in mine]
        return [a for a in held if isinstance(a, np.ndarray)]


def fresh(value: Any) -> Any:
    """An argument that a run may change."""
    if isinstance(value, TensorMap):
        return dataclasses.replace(value, array=value.array.copy())
    return value.copy() if isinstance(value, np.ndarray) else value


def captured(kernel: Any, args: Sequence[Any], grid: tuple[int, ...], **options: Any) -> Launch:
    """The launch that running a kernel at level ptx makes."""
    made = kernel.warmup(*args, grid=grid, **options)
    found: list[Launch] = []

    def run(ptx: str, name: str, arrays: list[Any], extents: tuple[int, int, int], threads: int,
            shared_bytes: int, **options: Any) -> None:
        found.append(Launch(ptx, name, [fresh(a) for a in arrays], extents, threads, shared_bytes))

    with mock.patch.object(tilec.sim, "run", run):
        made.run(list(args), grid, level="ptx")
    (launch,) = found
    return launch


def small_product(stages: int) -> Launch:
    """32 x 32 x 16 f16 tiles on two warps, ragged on every side, five steps of k."""
    p = product({"kind": "f16", "block": (32, 32, 16), "a": "rows", "b": "rows",
                 "edges": "aligned" if stages == 2 else "exact", "steps": 5, "programs": (2, 1)},
                np.random.default_rng(stages))
    return captured(matmul, list(p.args.values()), p.grid, num_warps=2, num_stages=stages,
                    target="sm_80", **p.constexprs)


def pointer_product() -> Launch:
    """128 x 32 x 32 f16 tiles on two warpgroups, three stages, five steps of k, ragged: cp.async
    feeds wgmma."""
    p = product({"kind": "f16", "block": (128, 32, 32), "a": "rows", "b": "rows",
                 "edges": "aligned", "steps": 5}, np.random.default_rng(14))
    return captured(matmul, list(p.args.values()), p.grid, num_warps=8, num_stages=3,
                    find_boxes=False, target="sm_90a", **p.constexprs)


def big_product() -> Launch:
    """128 x 128 x 32 bf16 tiles on four warps, three stages."""
    example = load_example("06_matmul")
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal((128, 128)).astype(ml_dtypes.bfloat16) for _ in range(2))
    c = poisoned((128, 128), ml_dtypes.bfloat16)
    return captured(example.matmul_kernel, [a, b, c, 128, 128, 128, 128, 1, 128, 1, 128, 1], (1,),
                    num_warps=4, num_stages=3, target="sm_80", ACTIVATION=example.identity,
                    ACC=tilec.language.float32, BM=128, BN=128, BK=32, GROUP=8)


def attention_launch() -> Launch:
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((n, 16)).astype(np.float16) for n in (32, 77, 77))
    return captured(attention, [q, k, v, poisoned((32, 16), np.float32), 77], (1,), num_warps=2,
                    num_stages=3, target="sm_80", BM=32, BN=16, D=16)


def reduction() -> Launch:
    x = np.random.default_rng(8).standard_normal((32, 64)).astype(np.float32)
    outs = [poisoned((64,), np.float32), poisoned((64,), np.float32), poisoned((64,), np.int32)]
    return captured(reduce_kernel, [x, *outs], (1,), num_warps=4, target="sm_80", M=32, N=64,
                    AXIS=0)


def shapes() -> Launch:
    """Transposition, reshaping and permutation: conversions between layouts."""
    x = np.random.default_rng(9).standard_normal((32, 64)).astype(np.float32)
    return captured(shape_kernel, [x, *(poisoned((2048,), np.float32) for _ in range(3))], (1,),
                    num_warps=4, target="sm_80", M=32, N=64)


def softmax() -> Launch:
    example = load_example("02_fused_softmax")
    x = np.random.default_rng(10).standard_normal((2, 500)).astype(np.float32)
    return captured(example.softmax_kernel, [x, poisoned(x.shape, np.float32), 500, 500, 500], (2,),
                    num_warps=4, target="sm_80", BLOCK=512, EVEN=False, RELOAD=False)


def atomics() -> Launch:
    x = np.random.default_rng(11).integers(0, 1000, 200).astype(np.int32)
    return captured(atomic_kernel, [x, np.zeros(9, np.int32), poisoned((2,), np.int32), 200], (2,),
                    num_warps=4, target="sm_80", B=128)


def hopper_product(name: str) -> Launch:
    """A product of tests/lit/fixtures: TMA, mbarriers, wgmma; two tiles of three steps each."""
    m, n, k = 120, 264, 136
    values, _ = hopper.gemm_args(m, n, k, seed=13)
    maps = [TensorMap(x, "bf16", x.shape[::-1], x.strides[:1], box, swizzle=128)
            for x, box in zip(values[:3], ((64, 128), (64, 64), (64, 64)), strict=True)]
    module = fixture(name)
    made = compile_from(module, Target.parse("sm_90a"), "ptx")
    return Launch(made.ptx, made.name, [*maps, m, n, k], (1, 1, 1), 32 * module.num_warps,
                  made.shared)


LAUNCHES: dict[str, Callable[[], Launch]] = {
    **{f"product of {n} stages": functools.partial(small_product, n) for n in (2, 3, 4)},
    "big product": big_product, "attention": attention_launch, "reduction": reduction,
    "shapes": shapes, "softmax": softmax, "atomics": atomics, "pointer product": pointer_product,
    "hopper product": functools.partial(hopper_product, "gemm_a_branch.tir"),
    "product by roles": functools.partial(hopper_product, "gemm_c_e2.tir"),
}
