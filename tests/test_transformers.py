"""Parity with GPT-2 in `transformers`, on a tiny random model that is made here."""

import pytest
import torch

from modernize.checkpoint import open_checkpoint
from modernize.errors import UnknownLayout
from modernize.loading import load
from modernize.old import OldGPT
from modernize.recognise import recognise

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


def randomised(model, folder):
    """A model in float64 whose weights matter, saved; its logits for some ids."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # away from what it was initialised with
            noise = torch.randn(parameter.shape, dtype=torch.float64)
            parameter.copy_(parameter + 0.2 * noise if parameter.ndim == 1 else noise / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    ids = torch.randint(2, 61, (3, 16))
    with torch.no_grad():
        return ids, model(ids).logits


SIZES = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
GPT2_SIZES = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 16}
OTHER_SIZES = {
    "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "max_position_embeddings": 16,
}  # fmt: skip


def opt(**change):
    sizes = {**OTHER_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}
    return transformers.OPTForCausalLM(transformers.OPTConfig(**SIZES, **sizes, **change))


def bigcode(**change):
    return transformers.GPTBigCodeForCausalLM(transformers.GPTBigCodeConfig(**SIZES, **GPT2_SIZES, **change))


def biogpt(**change):
    return transformers.BioGptForCausalLM(
        transformers.BioGptConfig(**SIZES, **OTHER_SIZES, intermediate_size=48, **change)
    )


def cerebras(**change):
    """GPT-2's classes with the exact GELU."""
    config = transformers.GPT2Config(**SIZES, **GPT2_SIZES, activation_function="gelu", **change)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize(
    ("make", "change", "dialect"),
    [
        (opt, {}, "opt"),
        (opt, {"enable_bias": False, "activation_function": "gelu"}, "opt"),
        (opt, {"tie_word_embeddings": False}, "opt"),
        (bigcode, {}, "bigcode"),
        (bigcode, {"tie_word_embeddings": False}, "bigcode"),
        (biogpt, {}, "biogpt"),
        (cerebras, {}, "gpt2"),
    ],
)
def test_a_descendant_gives_the_same_logits(tmp_path, make, change, dialect):
    torch.manual_seed(2)
    ids, wanted = randomised(make(**change), tmp_path)
    assert recognise(open_checkpoint(tmp_path)).dialect.name == dialect
    torch.testing.assert_close(load(tmp_path)(ids), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "change", "said"),
    [
        (opt, {"do_layer_norm_before": False}, "do_layer_norm_before|final_layer_norm"),
        (bigcode, {"multi_query": False}, "multi_query"),
        (biogpt, {"scale_embedding": False}, "scale_embedding"),
    ],
)
def test_a_descendant_that_computes_something_else_is_refused(tmp_path, make, change, said):
    randomised(make(**change), tmp_path)
    with pytest.raises(UnknownLayout, match=said):
        load(tmp_path)


def test_a_dialogpt_head_by_its_old_name(tmp_path):
    torch.manual_seed(3)
    ids, wanted = randomised(cerebras(), tmp_path)
    state = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float64).state_dict()
    state["lm_head.decoder.weight"] = state.pop("lm_head.weight")
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    torch.testing.assert_close(load(tmp_path)(ids), wanted, rtol=0, atol=1e-9)


def test_a_folder_in_shards_that_transformers_wrote(tmp_path):
    torch.manual_seed(4)
    model = cerebras()
    ids, wanted = randomised(model, tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    torch.testing.assert_close(load(tmp_path / "shards")(ids), wanted, rtol=0, atol=1e-9)


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
