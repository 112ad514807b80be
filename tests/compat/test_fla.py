"""The operators of fla (flash-linear-attention), unmodified, against their formulas in float64:
values and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
from tests.compat.support import Tensors, check  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("poisoned"),
              pytest.mark.filterwarnings("ignore")]
CASES = {}
# Products of float32 are rounded to 10 bits there, those of bfloat16 and what is stored to 7.
TF32 = {"norm": 3e-3}
BF16 = {"norm": 1e-2}


def case(function):
    """A function of (fla's modules by name, random tensors) that gives what `check` takes."""
    CASES[function.__name__] = function
    return function


def rms(x, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


# -- element by element ---------------------------------------------------------------------------

@case
def sigmoid(fla, t):
    return fla("modules.activations").sigmoid, torch.sigmoid, t.normal(5, 3, 37)


@case
def logsigmoid(fla, t):
    return (lambda x: fla("modules.activations").logsigmoid(x, 1.7),
            lambda x: F.logsigmoid(x) / 1.7, t.normal(5, 3, 37, scale=4))


@case
def swish(fla, t):
    return fla("modules.activations").swish, F.silu, t.normal(5, 3, 37)


@case
def swiglu(fla, t):
    return (fla("modules.activations").swiglu, lambda x, y: F.silu(x) * y, t.normal(5, 3, 37),
            t.normal(5, 3, 37))


# -- norms ----------------------------------------------------------------------------------------

@case
def rms_norm(fla, t):
    return (lambda x, w, b: fla("modules.norm.layernorm").rms_norm(x, w, b, eps=1e-6),
            lambda x, w, b: rms(x) * w + b, t.normal(3, 7, 51), t.normal(51), t.normal(51))


@case
def layer_norm_of_a_sum(fla, t):
    def formula(x, w, b, r):
        return F.layer_norm(x + r, (51,), w, b, 1e-5), x + r
    return (lambda x, w, b, r: fla("modules.norm.layernorm").layer_norm(x, w, b, r, 1e-5, True),
            formula, t.normal(3, 7, 51), t.normal(51), t.normal(51), t.normal(3, 7, 51))


@case
def group_norm(fla, t):
    return (lambda x, w, b: fla("modules.norm.layernorm").group_norm(x, w, b, num_groups=3),
            lambda x, w, b: F.group_norm(x.view(-1, 48), 3, w, b, 1e-5).view_as(x),
            t.normal(3, 7, 48), t.normal(48), t.normal(48))


@case
def rms_norm_gated(fla, t):
    return (lambda x, g, w: fla("modules.norm.fused_norm_gate").rms_norm_gated(x, g, w, None),
            lambda x, g, w: rms(x) * w * F.silu(g), t.normal(3, 7, 51), t.normal(3, 7, 51),
            t.normal(51))


@case
def l2norm(fla, t):
    return (fla("modules.norm.l2norm").l2norm,
            lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6),
            t.normal(3, 7, 5, 37))


# -- sequences ------------------------------------------------------------------------------------

@case
def rotary_embedding(fla, t):
    angles = t.normal(23, 16)

    def formula(x):
        cos, sin = (p[:, None].double() for p in (angles.cos(), angles.sin()))
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)
    return (lambda x: fla("modules.rotary").rotary_embedding(x, angles.cos(), angles.sin()),
            formula, t.normal(2, 23, 3, 32))


@case
def token_shift(fla, t):
    return (lambda x: fla("modules.token_shift").token_shift(x),
            lambda x: F.pad(x, (0, 0, 1, -1)) - x, t.normal(2, 23, 45))


@case
def causal_convolution(fla, t):
    def formula(x, w, b):
        y = F.conv1d(F.pad(x.mT, (3, 0)), w[:, None], b, groups=45).mT
        return F.silu(y)
    return (lambda x, w, b: fla("modules.causal_conv1d").causal_conv1d(
                x, w, b, activation="silu")[0], formula,
            t.normal(2, 77, 45), t.normal(45, 4), t.normal(45))


@case
def mean_pooling(fla, t):
    return (lambda x: fla("ops.utils.pooling").mean_pooling(x, 16),
            lambda x: torch.stack([c.mean(1) for c in x.split(16, 1)], 1), t.normal(2, 45, 3, 24))


@case
def chunk_cumsum(fla, t):
    return (lambda x: fla("ops.utils.cumsum").chunk_local_cumsum(x.detach(), 16),
            lambda x: torch.cat([c.cumsum(1) for c in x.detach().split(16, 1)], 1),
            t.normal(2, 45, 3, 24))


@case
def cumsum_backwards(fla, t):
    return (lambda x: fla("ops.utils.cumsum").chunk_global_cumsum(x.detach(), reverse=True),
            lambda x: x.detach().flip(1).cumsum(1).flip(1), t.normal(2, 145, 3))


# -- losses ---------------------------------------------------------------------------------------

@case
def cross_entropy(fla, t):
    target = t.integers(67, 13)
    target[::4] = -100
    return (lambda x: fla("modules.fused_cross_entropy").cross_entropy_loss(x, target, 0.1)[0],
            lambda x: F.cross_entropy(x, target, label_smoothing=0.1, reduction="none"),
            t.normal(13, 67, scale=3))


@case
def kl_divergence_of_linears(fla, t):
    other, weight = t.normal(13, 24), t.normal(67, 24)

    def formula(x, w):
        return F.kl_div((x @ w.T).log_softmax(-1), (other @ weight.T).double().softmax(-1),
                        reduction="batchmean")
    return (lambda x, w: fla("modules.fused_kl_div").fused_kl_div_loss(x, other, w, weight),
            formula, t.normal(13, 24), t.normal(67, 24), {"rtol": 1e-4, "atol": 1e-4})


# -- attention, linear and not --------------------------------------------------------------------

def recurrent(q, k, v, decay=None, beta=None, scale=None):
    """State by state: S = decay S + k v, or after the delta rule k (beta (v - S k)); o = q S."""
    out, state = [], q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    for i in range(q.shape[1]):
        if decay is not None:
            state = state * decay[:, i]
        new = v[:, i]
        if beta is not None:
            new = beta[:, i, :, None] * (new - torch.einsum("bhkv,bhk->bhv", state, k[:, i]))
        state = state + k[:, i, ..., None] * new[..., None, :]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, i]))
    return torch.stack(out, 1) * (q.shape[-1] ** -0.5 if scale is None else scale)


def qkv(t, length=83, heads=2, size=16, wide=32):
    return (t.normal(1, length, heads, size), F.normalize(t.normal(1, length, heads, size), dim=-1),
            t.normal(1, length, heads, wide))


@case
def linear_attention(fla, t):
    return (lambda q, k, v: fla("ops.linear_attn").chunk_linear_attn(q, k, v, normalize=False)[0],
            recurrent, *qkv(t), TF32)


@case
def retention(fla, t):
    def formula(q, k, v):
        decay = 1 - 2.0 ** -(5 + torch.arange(2.0).double())
        return recurrent(q, k, v, decay[None, None, :, None, None].expand(1, 83, 2, 1, 1))
    return lambda q, k, v: fla("ops.retention").chunk_retention(q, k, v)[0], formula, *qkv(t), TF32


@case
def simple_gated_linear_attention(fla, t):
    return (lambda q, k, v, g: fla("ops.simple_gla").chunk_simple_gla(q, k, v, g=g)[0],
            lambda q, k, v, g: recurrent(q, k, v, g.exp()[..., None, None]), *qkv(t),
            F.logsigmoid(t.normal(1, 83, 2)), TF32)


@case
def gated_linear_attention(fla, t):
    return (lambda q, k, v, g: fla("ops.gla").fused_recurrent_gla(q, k, v, gk=g)[0],
            lambda q, k, v, g: recurrent(q, k, v, g.exp()[..., None]), *qkv(t, 23),
            F.logsigmoid(t.normal(1, 23, 2, 16)), {"rtol": 1e-4, "atol": 1e-4})


@case
def gated_linear_attention_by_chunks(fla, t):
    return (lambda q, k, v, g: fla("ops.gla").chunk_gla(q, k, v, g)[0],
            lambda q, k, v, g: recurrent(q, k, v, g.exp()[..., None]), *qkv(t),
            F.logsigmoid(t.normal(1, 83, 2, 16)), TF32)


@case
def delta_rule(fla, t):
    return (lambda q, k, v, b: fla("ops.delta_rule").fused_recurrent_delta_rule(q, k, v, b)[0],
            lambda q, k, v, b: recurrent(q, k, v, beta=b), *qkv(t, 23), t.uniform(1, 23, 2),
            {"rtol": 1e-4, "atol": 1e-4})


@case
def delta_rule_by_chunks(fla, t):
    return (lambda q, k, v, b: fla("ops.delta_rule").chunk_delta_rule(q, k, v, b)[0],
            lambda q, k, v, b: recurrent(q, k, v, beta=b),
            *(x.bfloat16() for x in (*qkv(t), t.uniform(1, 83, 2))), BF16)


@case
def gated_delta_rule(fla, t):
    return (lambda q, k, v, g, b: fla("ops.gated_delta_rule").chunk_gated_delta_rule(
                q, k, v, g, b)[0],
            lambda q, k, v, g, b: recurrent(q, k, v, g.exp()[..., None, None], b), *qkv(t),
            F.logsigmoid(t.normal(1, 83, 2)), t.uniform(1, 83, 2), TF32)


def gated_recurrence(x, g):
    out, state = [], torch.zeros_like(x[:, 0])
    for i in range(x.shape[1]):
        state = g[:, i].exp() * state + x[:, i]
        out.append(state)
    return torch.stack(out, 1)


@case
def hgrn(fla, t):
    return (lambda x, g: fla("ops.hgrn").fused_recurrent_hgrn(x, g)[0], gated_recurrence,
            t.normal(2, 37, 45), F.logsigmoid(t.normal(2, 37, 45)), {"rtol": 1e-4, "atol": 1e-4})


def softmax_attention(q, k, v):
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(later, -torch.inf).softmax(-1), v)


@case
def attention(fla, t):
    return (lambda q, k, v: fla("ops.attn").parallel_attn(q, k, v), softmax_attention,
            *qkv(t), TF32)


@pytest.mark.parametrize("name", CASES)
def test_fla(name, library):
    ours, formula, *inputs = CASES[name](lambda m: library(f"fla.{m}"), Tensors(name))
    options = inputs.pop() if isinstance(inputs[-1], dict) else {}
    check(ours, formula, *inputs, **options)
