"""Random tensors, and the comparison of an operator with its formula in float64, both ways."""

from __future__ import annotations

import zlib

import pytest

torch = pytest.importorskip("torch")


class Tensors:
    """Seeded random tensors of one test."""

    def __init__(self, name):
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def normal(self, *shape, dtype=torch.float32, scale=1.0):
        return (torch.randn(*shape, generator=self.generator) * scale).to(dtype)

    def uniform(self, *shape, low=0.0, high=1.0):
        return torch.rand(*shape, generator=self.generator) * (high - low) + low

    def integers(self, high, *shape, low=0):
        return torch.randint(low, high, shape, generator=self.generator)

    def permutation(self, n):
        return torch.randperm(n, generator=self.generator)

    def angles(self, *shape):
        """cos and sin of the angles of half of the last dimension, twice."""
        half = self.normal(*shape[:-1], shape[-1] // 2)
        both = torch.cat((half, half), -1)
        return both.cos(), both.sin()


def check(ours, formula, *inputs, rtol=2e-5, atol=2e-5, norm=None):
    """The tensors that `ours` gives for copies of the inputs, and the gradients of the floating
    ones for random ones of the outputs that have any, are those of `formula` in float64, element
    by element, or where `norm` is given to that part of their norm."""
    left = [copy(x, None) for x in inputs]
    right = [copy(x, torch.float64) for x in inputs]
    got, want = as_tuple(ours(*left)), as_tuple(formula(*right))
    assert len(got) == len(want)
    for k, (g, w) in enumerate(zip(got, want)):
        close(g, w, rtol, atol, f"result {k}", norm)
    both = [(g, w) for g, w in zip(got, want) if w.requires_grad]
    generator = torch.Generator().manual_seed(5)
    seeds = [torch.randn(w.shape, generator=generator) for _, w in both]
    if not both:
        return
    torch.autograd.backward([g for g, _ in both], [
        s.to(g.dtype, copy=True) for s, (g, _) in zip(seeds, both)])
    torch.autograd.backward([w for _, w in both], [s.double() for s in seeds])
    for k, (g, w) in enumerate(zip(left, right)):
        if isinstance(w, torch.Tensor) and w.grad is not None:
            close(g.grad, w.grad, rtol, atol, f"gradient {k}", norm)


def copy(x, dtype):
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x.clone() if isinstance(x, torch.Tensor) else x
    return x.detach().clone().to(dtype or x.dtype).requires_grad_(True)


def as_tuple(values):
    values = values if isinstance(values, (tuple, list)) else (values,)
    return tuple(v for v in values if v is not None)


def close(got, want, rtol, atol, what, norm=None):
    assert got is not None, f"{what} is missing"
    got, want = got.detach().double(), want.detach().double()
    if norm is None:
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol,
                                   msg=lambda text: f"{what}: {text}")
        return
    assert got.shape == want.shape
    error = ((got - want).norm() / want.norm()).item()
    assert error <= norm, f"{what} is off by {error} of its norm"
