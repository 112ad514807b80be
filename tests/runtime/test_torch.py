"""Tensors of torch, on the CPU: arguments of every dtype, views, descriptors, gradients, at every
level. Run by `make test-torch`."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text
from tilec import knobs
from tilec.errors import LaunchError
from tilec.runtime import device

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32",
          "float64", "float8_e4m3fn", "float8_e5m2")


@tilec.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask) + tl.load(y_ptr + offs, mask), mask)


@tilec.jit
def transpose(x, out, sx, so, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + i[:, None] * sx + j[None, :])
    tl.store(out + j[:, None] * so + i[None, :], tl.trans(tile))


@tilec.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    x, y = a.load([0, 0]), b.load([0, 0])
    c.store([0, 0], tl.dot(x, y))


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


@pytest.mark.parametrize("level", knobs.RUN_LEVELS)
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_moves_bit_for_bit(name, level) -> None:
    dtype = getattr(torch, name)
    rng = np.random.default_rng(len(name))
    size = torch.empty(0, dtype=dtype).element_size()
    raw = rng.integers(0, 2 if name == "bool" else 256, (5 * 12 * size,), dtype=np.uint8)
    x = torch.from_numpy(raw).view(dtype).reshape(5, 12)
    out = torch.from_numpy(np.full(7 * 9 * size, 0xA5, np.uint8)).view(dtype).reshape(7, 9)
    with knobs.scope(run=level):
        # A view with an offset and gaps into one with gaps: rows 1 to 3, columns 2 to 8.
        transpose[1](x[1:4, 2:9], out[:, 3:], 12, 9, M=3, N=7)
    want = torch.from_numpy(np.full(7 * 9 * size, 0xA5, np.uint8)).view(dtype).reshape(7, 9)
    want[:, 3:6] = x[1:4, 2:9].T
    np.testing.assert_array_equal(bits(out), bits(want))


@pytest.mark.parametrize("level", knobs.RUN_LEVELS)
@pytest.mark.parametrize("name", ("float16", "bfloat16"))
def test_descriptors_of_tensors(name, level) -> None:
    torch.manual_seed(3)
    a, b = (torch.randint(-4, 5, (32, 32)).to(getattr(torch, name)) for _ in range(2))
    c = torch.full((32, 32), float("nan"))
    with knobs.scope(run=level):
        product[1](*(tilec.TensorDescriptor.from_tensor(t, [32, 32]) for t in (a, b, c)),
                   M=32, N=32, K=32)
    assert torch.equal(c, a.float() @ b.float())


def test_a_tensor_that_needs_a_gradient_is_read_as_it_is() -> None:
    x = torch.arange(8.0, requires_grad=True)
    out = torch.full((8,), float("nan"))
    add[1](x, x.detach(), out, 8, BLOCK=8)
    assert out.tolist() == [2.0 * k for k in range(8)] and x.grad is None


def test_a_sparse_tensor_is_refused() -> None:
    x = torch.zeros(8)
    with pytest.raises(LaunchError, match="x_ptr"):
        add[1](x.to_sparse(), x, x, 8, BLOCK=8)


def test_cpu_tensors(monkeypatch):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, y = (torch.randn(100).to(dtype) for _ in range(2))
        out = torch.full((100,), float("nan"), dtype=dtype)
        add[1](x, y, out, torch.tensor(100).item(), BLOCK=128)
        assert torch.equal(out, x + y)
    monkeypatch.setattr(device, "gpu_available", lambda: True)
    monkeypatch.setattr(device, "target_of", lambda index: "sm_90a")
    monkeypatch.setattr(device, "current_device", lambda: 0)
    kernel = from_text("@tilec.jit\ndef k(p):\n    tl.store(p, 1.0)\n")
    with pytest.raises(LaunchError, match="got the CPU tensor `p`") as caught:
        kernel[1](torch.zeros(1))
    assert ".cuda()" in caught.value.advice and "TILEC_RUN" in caught.value.advice
    with knobs.scope(run="tile"):
        zero = torch.zeros(1)
        kernel[1](zero)
    assert zero.item() == 1.0


def test_views_and_scalars_of_torch():
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    kernel = from_text("@tilec.jit\ndef k(p, stride, D: tl.constexpr):\n"
                       "    i = tl.arange(0, 3)\n    q = p + i * stride\n"
                       "    tl.store(q, (tl.load(q) * 2).to(D))\n")
    kernel[1](whole[:, 1], whole.stride(0), torch.float32)
    assert whole[:, 1].tolist() == [2, 10, 18] and whole[:, 0].tolist() == [0, 4, 8]
    scalar = torch.tensor(3.0)
    from_text("@tilec.jit\ndef k(p):\n    tl.store(p, tl.load(p) + 1)\n")[1](scalar)
    assert scalar.item() == 4.0
    with pytest.raises(LaunchError, match="argument `x_ptr`: it is on the device meta"):
        add[1](torch.zeros(3, device="meta"), whole, whole, 3, BLOCK=4)
    k = add.warmup(torch.float32, torch.float32, torch.float32, 100, BLOCK=64, grid=(1,))
    assert str(k.signature["x_ptr"]) == "*fp32:16"
