"""Liger's operators, unmodified, against their formulas in float64: values and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
from tests.compat.support import Tensors, check  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("poisoned"),
              pytest.mark.filterwarnings("ignore")]
CASES = {}
TF32 = {"norm": 1e-3}  # products of float32 are rounded to 10 bits there


def case(function):
    """A function of (Liger's ops, random tensors) that gives what `check` takes."""
    CASES[function.__name__] = function
    return function


def rms(x, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


# -- norms ----------------------------------------------------------------------------------------

@case
def rms_norm(ops, t):
    return (lambda x, w: ops.LigerRMSNormFunction.apply(x, w, 1e-6, 0.5, "gemma", False, None),
            lambda x, w: rms(x) * (w + 0.5), t.normal(3, 7, 83), t.normal(83))


@case
def rms_norm_by_blocks_of_rows(ops, t):
    return (lambda x, w: ops.LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False, False),
            lambda x, w: rms(x) * w, t.normal(37, 83), t.normal(83))


@case
def fused_add_rms_norm(ops, t):
    def formula(x, r, w):
        return rms(x + r) * w, x + r
    return (lambda x, r, w: ops.LigerFusedAddRMSNormFunction.apply(x, r, w, 1e-6, 0.0, "llama",
                                                                   False),
            formula, t.normal(2, 5, 97), t.normal(2, 5, 97), t.normal(97))


@case
def modulated_rms_norm(ops, t):
    def formula(x, w, scale, shift):
        return rms(x) * w * (1 + scale[:, None]) + shift[:, None]
    return (lambda x, w, scale, shift: ops.LigerModulatedRMSNormFunction.apply(
                x, w, scale, shift, 1e-6, 0.0, "llama", False),
            formula, t.normal(3, 5, 51), t.normal(51), t.normal(3, 51), t.normal(3, 51))


@case
def layer_norm(ops, t):
    return (lambda x, w, b: ops.LigerLayerNormFunction.apply(x, w, b, 1e-5),
            lambda x, w, b: F.layer_norm(x, (101,), w, b, 1e-5),
            t.normal(3, 5, 101), t.normal(101), t.normal(101))


@case
def group_norm(ops, t):
    return (lambda x, w, b: ops.LigerGroupNormFunction.apply(x, w, b, 6, 3, 1e-5),
            lambda x, w, b: F.group_norm(x.double(), 3, w, b, 1e-5),
            t.normal(2, 6, 35), t.normal(6), t.normal(6))


@case
def poly_norm(ops, t):
    def formula(x, w, b):
        return w[0] * rms(x ** 3) + w[1] * rms(x ** 2) + w[2] * rms(x) + b
    return (lambda x, w, b: ops.LigerPolyNormFunction.apply(x, w, b, 1e-6, False), formula,
            t.normal(11, 77), t.normal(3), t.normal(1)[0], {"rtol": 1e-4, "atol": 1e-4})


@case
def dyt(ops, t):
    return (ops.LigerDyTFunction.apply,
            lambda x, alpha, gamma, beta: torch.tanh(alpha * x) * gamma + beta,
            t.normal(3, 4, 61), t.normal(1), t.normal(61), t.normal(61))


# -- positions ------------------------------------------------------------------------------------

def rotate(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


@case
def rope(ops, t):
    cos, sin = t.angles(1, 9, 24)
    return (lambda q, k: ops.LigerRopeFunction.apply(q, k, cos, sin),
            lambda q, k: (rotate(q, cos.double(), sin.double()),
                          rotate(k, cos.double(), sin.double())),
            t.normal(2, 5, 9, 24), t.normal(2, 3, 9, 24))


@case
def qwen2vl_mrope(ops, t):
    cos, sin = t.angles(3, 2, 7, 32)
    section = [4, 5, 7]

    def formula(q, k):
        parts = [torch.cat([m[i % 3] for i, m in enumerate(x.double().split(section * 2, -1))],
                           -1)[:, None] for x in (cos, sin)]
        return rotate(q, *parts), rotate(k, *parts)
    return (lambda q, k: ops.LigerQwen2VLMRopeFunction.apply(q, k, cos, sin, section), formula,
            t.normal(2, 3, 7, 32), t.normal(2, 1, 7, 32))


@case
def llama4_rope(ops, t):
    turn = torch.polar(torch.ones(9, 12), t.normal(9, 12))

    def formula(q, k):
        return tuple(torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (12, 2)))
                                        * turn.to(torch.complex128)[:, None]).flatten(-2)
                     for x in (q, k))
    return (lambda q, k: ops.LigerLlama4RopeFunction.apply(q, k, turn), formula,
            t.normal(2, 9, 5, 24), t.normal(2, 9, 3, 24))


@case
def embedding(ops, t):
    index = t.integers(23, 4, 7)
    return (lambda e: ops.LigerEmbeddingFunction.apply(e, index), lambda e: e[index],
            t.normal(23, 45))


# -- multilayer perceptrons -----------------------------------------------------------------------

@case
def swiglu(ops, t):
    return (lambda a, b: ops.LigerSiLUMulFunction.apply(a, b, 1.3, 0.7),
            lambda a, b: 0.7 * F.silu(1.3 * a) * b, t.normal(3, 5, 67), t.normal(3, 5, 67))


@case
def swiglu_of_both_in_one(ops, t):
    def formula(y):
        gate, up = y.chunk(2, -1)
        return F.silu(gate) * up
    return lambda y: ops.LigerFusedGateUpSiLUMulFunction.apply(y, False), formula, t.normal(9, 94)


@case
def geglu(ops, t):
    return (ops.LigerGELUMulFunction.apply,
            lambda a, b: F.gelu(a, approximate="tanh") * b, t.normal(3, 5, 67), t.normal(3, 5, 67))


@case
def relu_squared(ops, t):
    return (ops.LigerReLUSquaredFunction.apply, lambda x: F.relu(x).square(), t.normal(7, 93))


def perceptron(x, gate, up, down):
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


@case
def mlp(ops, t):
    return (ops.LigerMLPFunction.apply, perceptron, t.normal(2, 9, 32, scale=0.5),
            *(t.normal(*s, scale=0.3) for s in ((48, 32), (48, 32), (32, 48))), TF32)


@case
def tiled_mlp(ops, t):
    def ours(x, gate, up, down):
        return ops.apply_tiled_mlp(
            lambda _, shard: F.linear(ops.LigerSiLUMulFunction.apply(
                F.linear(shard, gate), F.linear(shard, up)), down), torch.nn.Module(), x, 3)
    return ours, perceptron, t.normal(2, 7, 16), *(t.normal(*s, scale=0.3) for s in (
        (21, 16), (21, 16), (16, 21)))


@case
def fused_moe(ops, t):
    experts, top = 4, 2
    index = torch.stack([t.permutation(experts)[:top] for _ in range(13)]).int()

    def formula(x, gate_up, down, weights):
        out = torch.zeros_like(x)
        for k in range(top):
            for e in range(experts):
                chosen = (index[:, k] == e)[:, None]
                gate, up = gate_up[e].chunk(2)
                out = out + chosen * weights[:, k:k + 1] * perceptron(x, gate, up, down[e])
        return out
    return (lambda x, gate_up, down, weights: ops.LigerFusedMoEFunction.apply(
                x, gate_up, down, index, weights), formula, t.normal(13, 32),
            t.normal(experts, 48, 32, scale=0.3), t.normal(experts, 32, 24, scale=0.3),
            t.uniform(13, top), TF32)


# -- attention ------------------------------------------------------------------------------------

@case
def softmax(ops, t):
    return ops.LigerSoftmaxFunction.apply, lambda x: x.softmax(-1), t.normal(5, 3, 71)


def sparse(x):
    ordered = x.sort(-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1)
    sums = ordered.cumsum(-1) - 1
    support = (count * ordered > sums).sum(-1, keepdim=True)
    return F.relu(x - sums.gather(-1, support - 1) / support)


@case
def sparsemax(ops, t):
    return (lambda x: ops.LigerSparsemaxFunction.apply(x, -1), sparse, t.normal(9, 45))


@case
def multi_token_attention(ops, t):
    n = 13
    later = torch.ones(n, n, dtype=torch.bool).triu(1)

    def formula(x, w, b):
        p = x.masked_fill(later, -torch.inf).softmax(-1)
        return F.conv2d(p, w, b, padding=1).masked_fill(later, 0.0)
    return (lambda x, w, b: ops.LigerMultiTokenAttentionFunction.apply(x, w, b, 1, 1), formula,
            t.normal(2, 3, n, n), t.normal(3, 3, 3, 3), t.normal(3))


@case
def fused_neighborhood_attention(ops, t):
    n = 21
    apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()

    def formula(q, k, v):
        p = (q @ k.mT / 16 ** 0.5).masked_fill((apart > 4) | (apart % 2 == 1), -torch.inf)
        return p.softmax(-1) @ v
    return (lambda q, k, v: ops.LigerFusedNeighborhoodAttentionFunction.apply(q, k, v, 5, 2),
            formula, *(t.normal(2, 2, n, 16) for _ in range(3)), TF32)


@case
def attn_res(ops, t):
    def formula(v, query, norm):
        scores = (rms(v) * norm) @ query
        return (scores.softmax(0)[..., None] * v).sum(0)
    return (lambda v, query, norm: ops.LigerAttnResFunction.apply(v, query, norm, 1e-6), formula,
            t.normal(5, 3, 4, 38), t.normal(38), t.normal(38), {"rtol": 1e-4, "atol": 1e-4})


# -- hyper-connections ----------------------------------------------------------------------------

@case
def mhc_coefficients(ops, t):
    hc, c, steps, eps = 4, 17, 6, 1e-6

    def formula(x, phi, b, pre, post, res):
        flat = x.flatten(-2)
        mix = (flat @ phi) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
        h_pre = (mix[..., :hc] * pre + b[:hc]).sigmoid()
        h_post = (mix[..., hc:2 * hc] * post + b[hc:2 * hc]).sigmoid() * 2.0
        m = (mix[..., 2 * hc:] * res + b[2 * hc:]).unflatten(-1, (hc, hc)).softmax(-1) + eps
        m = m / (m.sum(-2, keepdim=True) + eps)
        for _ in range(steps - 1):
            m = m / (m.sum(-1, keepdim=True) + eps)
            m = m / (m.sum(-2, keepdim=True) + eps)
        return h_pre, h_post, m
    return (lambda *given: ops.LigerMHCCoeffsFunction.apply(*given, True, steps, 1e-6, 0.0, eps,
                                                            2.0),
            formula, t.normal(2, 5, hc, c), t.normal(hc * c, hc * hc + 2 * hc, scale=0.2),
            t.normal(hc * hc + 2 * hc), *t.normal(3), TF32)


@case
def mhc_pre(ops, t):
    return (ops.LigerMHCPreFunction.apply, lambda x, h: (h[..., None] * x).sum(-2),
            t.normal(2, 5, 4, 37), t.normal(2, 5, 4))


@case
def mhc_post_res(ops, t):
    def formula(x, f, post, res):
        return res @ x + post[..., None] * f[..., None, :]
    return (ops.LigerMHCPostResFunction.apply, formula, t.normal(2, 5, 4, 37), t.normal(2, 5, 37),
            t.normal(2, 5, 4), t.normal(2, 5, 4, 4))


# -- losses ---------------------------------------------------------------------------------------

def labels(t, classes, count):
    """Some of them to be ignored."""
    found = t.integers(classes, count)
    found[t.permutation(count)[:count // 4]] = -100
    return found


@case
def cross_entropy(ops, t):
    target, weight = labels(t, 91, 13), t.uniform(91, low=0.2)

    def formula(x):
        x = 30 * torch.tanh(x / 30)
        kept = target != -100
        smooth = F.cross_entropy(x, target, weight.double(), label_smoothing=0.1)
        z = 1e-2 * x.logsumexp(-1).square()[kept].sum() / kept.sum()
        return smooth + z, z.detach()
    return (lambda x: ops.LigerCrossEntropyFunction.apply(
                x.clone(), target, weight, -100, 1e-2, 0.1, "mean", 30.0, True)[:2],
            formula, t.normal(13, 91, scale=3))


@case
def cross_entropy_of_each(ops, t):
    target = labels(t, 91, 13)
    return (lambda x: ops.LigerCrossEntropyFunction.apply(
                x.clone(), target, None, -100, 0.0, 0.0, "none")[0],
            lambda x: F.cross_entropy(x, target, reduction="none"), t.normal(13, 91, scale=3))


@case
def fused_linear_cross_entropy(ops, t):
    target = labels(t, 37, 21)
    return (lambda x, w, b: ops.LigerFusedLinearCrossEntropyFunction.apply(
                x, w, target, b, None, -100, 0.0, 0.1, "sum")[0],
            lambda x, w, b: F.cross_entropy(x @ w.T + b, target, reduction="sum",
                                            label_smoothing=0.1),
            t.normal(21, 18), t.normal(37, 18), t.normal(37), {"rtol": 1e-4, "atol": 1e-4})


@case
def fused_linear_scaled_cross_entropy(ops, t):
    target = labels(t, 37, 21)

    def formula(x, w):
        p = (x @ w.T / 0.8).log_softmax(-1)
        kept = target != -100
        chosen = p.gather(-1, target.clamp(min=0)[:, None])[:, 0]
        return -chosen * kept, -(p.exp() * p).sum(-1) * kept
    return (lambda x, w: ops.LigerFusedLinearScaledCrossEntropyFunction.apply(
                x, w, target, 0.8, -100, 1, True), formula,
            t.normal(21, 18), t.normal(37, 18), {"rtol": 1e-4, "atol": 1e-4})


@case
def vocab_parallel_cross_entropy(ops, t):
    target = labels(t, 37, 12).reshape(4, 3)
    return (lambda x: ops.LigerVocabParallelCEFunction.apply(x, target, None, -100, 0.1, "pytorch",
                                                             "global"),
            lambda x: F.cross_entropy(x.permute(0, 2, 1), target, reduction="none",
                                      label_smoothing=0.1), t.normal(4, 3, 37))


@case
def fused_ce_tvd(ops, t):
    target, teacher = labels(t, 53, 9), t.normal(9, 53)

    def formula(x):
        kept = target != -100
        apart = (x.softmax(-1) - teacher.double().softmax(-1)).abs().sum(-1) / 2
        return F.cross_entropy(x, target, reduction="none"), apart * kept
    return (lambda x: ops.LigerFusedCETVDFunction.apply(x, teacher, target), formula,
            t.normal(9, 53))


def divergence(student, teacher, beta):
    """The generalised one of Jensen and Shannon, of logarithms of probabilities."""
    p, q = teacher.exp(), student.exp()
    both = (beta * p + (1 - beta) * q).log()
    return beta * p * (teacher - both) + (1 - beta) * q * (student - both)


@case
def jsd(ops, t):
    target, teacher = labels(t, 41, 11), t.normal(11, 41).log_softmax(-1)

    def formula(x):
        kept = target != -100
        return divergence(x, teacher.double(), 0.3)[kept].sum() / kept.sum()
    return (lambda x: ops.LigerJSDFunction.apply(x, teacher, target, 0.3), formula,
            t.normal(11, 41).log_softmax(-1))


@case
def fused_linear_jsd(ops, t):
    target = labels(t, 41, 11)
    teacher, weight = t.normal(11, 24), t.normal(41, 24)

    def formula(x, w):
        kept = target != -100
        p = (teacher @ weight.T).double() / 1.4
        return divergence((x @ w.T / 1.4).log_softmax(-1), p.log_softmax(-1),
                          0.3)[kept].sum() / kept.sum()
    return (lambda x, w: ops.LigerFusedLinearJSDFunction.apply(x, w, teacher, weight, target, 0.3,
                                                               -100, 1.4),
            formula, t.normal(11, 18), t.normal(41, 18), {"rtol": 1e-4, "atol": 1e-4})


@case
def kl_div(ops, t):
    target = t.normal(11, 41).softmax(-1)
    return (lambda x: ops.LigerKLDivLossFunction.apply(x, target, "batchmean"),
            lambda x: F.kl_div(x, target.double(), reduction="batchmean"),
            t.normal(11, 41).log_softmax(-1))


@case
def fused_linear_kl_div(ops, t):
    target = t.normal(11, 41).softmax(-1)
    return (lambda x, w: ops.LigerFusedLinearKLDivFunction.apply(x, w, target, None, "batchmean",
                                                                 -100, 1.4),
            lambda x, w: F.kl_div((x @ w.T / 1.4).log_softmax(-1), target.double(),
                                  reduction="batchmean"),
            t.normal(11, 18), t.normal(41, 18), {"rtol": 1e-4, "atol": 1e-4})


@case
def tvd(ops, t):
    target, teacher = labels(t, 41, 11), t.normal(11, 41).softmax(-1)

    def formula(p):
        kept = target != -100
        return (p - teacher.double()).abs()[kept].sum() / 2 / kept.sum()
    return (lambda p: ops.LigerTVDLossFunction.apply(p, teacher, target, "batchmean"), formula,
            t.normal(11, 41).softmax(-1))


@case
def grpo_loss(ops, t):
    batch, length, classes = 3, 7, 45
    chosen = t.integers(classes, batch, length)
    mask = t.integers(2, batch, length)
    mask[:, 0] = 1
    old, reference = (t.normal(batch, length, scale=0.3) - 4 for _ in range(2))
    advantages = t.normal(batch)

    def formula(x):
        p = (x[:, :-1] / 0.9).log_softmax(-1).gather(-1, chosen[..., None])[..., 0]
        ratio, gain = (p - old).exp(), advantages[:, None].double()
        loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.25) * gain)
        kl = (reference - p).exp() - (reference - p) - 1
        return (loss + 0.04 * kl) * mask, (kl * mask).detach()
    return (lambda x: ops.GrpoLossFunction.apply(
                x, old, reference, chosen, advantages, mask, 0.9, 0.04, 0.2, 0.25, False, "grpo",
                None, False)[:2],
            formula, t.normal(batch, length + 1, classes), {"rtol": 1e-4, "atol": 1e-4})


@pytest.mark.parametrize("name", CASES)
def test_liger(name, library, monkeypatch):
    # Of a CPU it does not ask how many programs are to run at once, as it does of an NPU, and
    # one operator takes tensors on a GPU alone.
    monkeypatch.setattr(torch.Tensor, "is_cuda", name == "mlp")
    dyt = library("liger_kernel.ops.dyt")
    monkeypatch.setattr(dyt, "infer_device", lambda: "npu")
    monkeypatch.setattr(dyt, "get_npu_core_count", lambda: 3)
    ours, formula, *inputs = CASES[name](library("liger_kernel.ops"), Tensors(name))
    options = inputs.pop() if isinstance(inputs[-1], dict) else {}
    check(ours, formula, *inputs, **options)
