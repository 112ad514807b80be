"""A tiny Llama of transformers, patched by Liger's own function: one training step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("poisoned"),
              pytest.mark.filterwarnings("ignore")]


def step(transformers, tokens, patch):
    """The loss, the gradients and the parameters after a step of one model, and its class."""
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=77, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        attn_implementation="eager", use_cache=False)
    model = transformers.LlamaForCausalLM(config)
    if patch is not None:
        patch(model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    optimizer.step()
    return loss.detach(), gradients, {n: p.detach() for n, p in model.named_parameters()}


def test_a_step_of_a_patched_llama_is_that_of_the_unpatched(library, monkeypatch):
    transformers = library("transformers")
    liger = library("liger_kernel.transformers")
    modeling = library("transformers.models.llama.modeling_llama")
    tokens = torch.randint(0, 97, (2, 19), generator=torch.Generator().manual_seed(3))
    want = step(transformers, tokens, None)
    for name in list(vars(modeling)):  # what the patch replaces comes back after the test
        monkeypatch.setattr(modeling, name, getattr(modeling, name))
    forward = modeling.LlamaForCausalLM.forward
    monkeypatch.setattr(modeling.LlamaForCausalLM, "forward", forward)
    calls = []
    for op in ("LigerRMSNormFunction", "LigerSiLUMulFunction", "LigerRopeFunction",
               "LigerFusedLinearCrossEntropyFunction"):
        function = getattr(library("liger_kernel.ops"), op)
        original = function.forward
        monkeypatch.setattr(function, "forward", staticmethod(
            lambda *a, _op=op, _original=original, **k: calls.append(_op) or _original(*a, **k)))
    got = step(transformers, tokens, liger.apply_liger_kernel_to_llama)
    assert [calls.count(op) for op in ("LigerRMSNormFunction", "LigerSiLUMulFunction",
                                       "LigerRopeFunction")] == [5, 2, 2]
    assert "LigerFusedLinearCrossEntropyFunction" in calls
    torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(got[1:], want[1:]):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=2e-6, msg=name)
