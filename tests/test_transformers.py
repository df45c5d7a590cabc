"""Parity with GPT-2 in `transformers`, on a tiny random model that is made here."""

import pytest
import torch

from modernize.loading import load
from modernize.old import OldGPT

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
@pytest.mark.parametrize("change", [{}, {"tie_word_embeddings": False}, {"n_inner": 40, "activation_function": "relu"}])
def test_gpt2_gives_the_same_logits(tmp_path, change, safe):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=32, n_positions=16, vocab_size=61, bos_token_id=0, eos_token_id=0, **change
    )
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # away from what it was initialised with
            noise = torch.randn(parameter.shape, dtype=torch.float64)
            parameter.copy_(parameter + 0.2 * noise if parameter.ndim == 1 else noise / parameter.shape[-1] ** 0.5)
    if safe:
        theirs.save_pretrained(tmp_path)
    else:
        config.save_pretrained(tmp_path)
        torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    ours = load(tmp_path)
    assert isinstance(ours, OldGPT)
    assert ours.spec.tied == change.get("tie_word_embeddings", True)
    ids = torch.randint(0, 61, (3, 16))
    torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=0, atol=1e-9)


def test_gpt2_base_model_gives_the_same_states(tmp_path):
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=32, n_positions=16, vocab_size=61, bos_token_id=0, eos_token_id=0
    )
    theirs = transformers.GPT2Model(config).eval()
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(0, 61, (3, 16))
    wanted = theirs(ids).last_hidden_state @ theirs.wte.weight.T
    torch.testing.assert_close(load(tmp_path)(ids), wanted, rtol=0, atol=1e-5)
