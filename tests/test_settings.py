"""Settings: under which names facts are found, and what cannot be carried over although the tensors alone could."""

import json
import math

import pytest
import tiny
import torch
from safetensors.torch import save_file

from modernize.checkpoint import open_checkpoint
from modernize.dialects.demands import DEMANDS
from modernize.dialects.setting_names import ALIASES
from modernize.errors import MissingFact, UnknownLayout
from modernize.facts import Facts
from modernize.recognise import recognise

SPEC = tiny.spec()  # 4 heads of 8, 32 wide, 16 positions
KEYS = tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("nanogpt"))


def found(tmp_path, said, *, keys=KEYS, facts=None, n_head=4, group="config"):
    heads = {"n_head": n_head} if n_head else {}
    torch.save({"model": keys, group: heads | said}, tmp_path / "m.pt")
    return recognise(open_checkpoint(tmp_path / "m.pt"), facts)


CONTRADICTIONS = [
    ("use_rope", True),
    ("rotary", 1),
    ("alibi", "true"),
    ("causal", False),
    ("is_causal", 0),
    ("bidirectional", True),
    ("attention_dir", "bidirectional"),
    ("sliding_window", 8),
    ("WINDOW_SIZE", 15),
    ("attention_window", [8, 8]),
    ("use_local_attn", True),
    ("attn_types", ["global", "local"]),
    ("parallel_residual", True),
    ("parallel_attn_mlp", True),
    ("qk_norm", True),
    ("logit_softcap", 30.0),
    ("n_kv_head", 2),
    ("num_key_value_heads", 1),
    ("multi_query", True),
    ("head_dim", 16),
    ("norm_type", "rmsnorm"),
    ("norm", "RMSNorm"),
    ("normalization_type", "RMS"),
    ("use_rmsnorm", True),
    ("positional_embedding_type", "shortformer"),
    ("position_embedding_type", "relative_key"),
    ("pos_encoding", "rope"),
    ("gated_mlp", True),
    ("scale_attn_weights", False),
    ("use_attn_scale", False),
    ("scale_attn_by_inverse_layer_idx", True),
    ("embedding_multiplier", 12.0),
]


@pytest.mark.parametrize(("name", "value"), CONTRADICTIONS)
def test_a_setting_that_cannot_be_carried_over_is_refused(tmp_path, name, value):
    with pytest.raises(UnknownLayout, match=rf"config\.{name} is .*, and only .* can be carried over") as caught:
        found(tmp_path, {name: value})
    assert repr(value) in caught.value.sentence
    assert "save it without that setting" in caught.value.hint


@pytest.mark.parametrize("demand", DEMANDS, ids=lambda d: d.names[0])
def test_every_demand_lets_what_is_not_said_pass(tmp_path, demand):
    assert found(tmp_path, dict.fromkeys(demand.names)).spec == SPEC


AGREEING = [
    ("use_rope", False),
    ("alibi", "False"),
    ("causal", True),
    ("attention_dir", "causal"),
    ("sliding_window", None),
    ("window_size", 16),
    ("window_size", -1),
    ("attn_types", ["global", "global"]),
    ("logit_softcap", 0.0),
    ("output_logits_soft_cap", -1.0),
    ("n_kv_head", 4),
    ("num_query_groups", "4"),
    ("head_dim", 8),
    ("norm_type", "LayerNorm"),
    ("norm_type", 2.0),  # of gradients
    ("norm", "pre"),
    ("normalization_type", "LNPre"),
    ("positional_embedding_type", "standard"),
    ("pos_encoding", "learned"),
    ("use_attn_scale", True),
    ("embedding_multiplier", 1.0),
    ("norm_position", "pre"),
    ("post_norm", False),
]


@pytest.mark.parametrize(("name", "value"), AGREEING)
def test_a_setting_that_agrees_is_no_hindrance(tmp_path, name, value):
    assert found(tmp_path, {name: value}).spec == SPEC


def test_rmsnorm_with_learned_positions_is_told_so(tmp_path):
    with pytest.raises(UnknownLayout) as caught:
        found(tmp_path, {"norm_type": "rms_norm"})
    assert "RMSNorm with learned positions" in caught.value.hint


@pytest.mark.parametrize("said", [{"post_norm": True}, {"norm_position": "post"}, {"norm_first": False}])
def test_norms_behind_are_told_however_they_are_said(tmp_path, said):
    with pytest.raises(UnknownLayout, match="post-norm"):
        found(tmp_path, said)


def test_one_key_and_value_for_all_heads_is_a_dialect_s_own(tmp_path):
    spec, dialect = tiny.spec(), tiny.dialect("bigcode")
    keys = tiny.as_dialect(tiny.fitted(tiny.jittered(spec), spec, dialect), spec, dialect)
    assert found(tmp_path, {"multi_query": True, "num_key_value_heads": 1}, keys=keys).dialect is dialect
    with pytest.raises(UnknownLayout, match=r"num_key_value_heads is 2, and only 1"):
        found(tmp_path, {"num_key_value_heads": 2}, keys=keys)


@pytest.mark.parametrize("name", ALIASES["activation"])
def test_an_activation_under_any_of_its_names(tmp_path, name):
    assert found(tmp_path, {name: "relu"}).spec.activation == "relu"


@pytest.mark.parametrize(
    ("value", "known"),
    [("GELU", "gelu"), ("ReLU", "relu"), ("nn.GELU()", "gelu"), ("GELU_new", "gelu_tanh"), ("NewGELU", "gelu_tanh")],
)
def test_an_activation_in_any_spelling(tmp_path, value, known):
    assert found(tmp_path, {"act": value}).spec.activation == known


@pytest.mark.parametrize("name", ALIASES["norm_eps"])
@pytest.mark.parametrize("value", [1e-3, "1e-3"])
def test_an_epsilon_under_any_of_its_names(tmp_path, name, value):
    assert found(tmp_path, {name: value}).spec.norm_eps == 1e-3


def test_an_optimizer_s_epsilon_is_none_of_the_norm_s(tmp_path):
    assert found(tmp_path, {"eps": 1e-8, "lr": 3e-4}).spec.norm_eps == 1e-5


@pytest.mark.parametrize("name", [*ALIASES["n_head"], "N_HEADS", "nHead"])
def test_heads_under_any_of_their_names(tmp_path, name):
    assert found(tmp_path, {name: 4}, n_head=0).spec.n_head == 4


@pytest.mark.parametrize("name", ALIASES["head_dim"])
def test_heads_by_their_size(tmp_path, name):
    assert found(tmp_path, {name: 8}, n_head=0).spec.n_head == 4
    chosen = found(tmp_path, {name: 8}, n_head=0, facts=Facts(n_head=2))
    assert any(f"config.{name} says 4 heads; --n-head 2 was taken" in warning for warning in chosen.warnings)


@pytest.mark.parametrize("value", ["four", [4, 4], 3.5, True])
def test_a_number_of_heads_that_is_none_is_named(tmp_path, value):
    with pytest.raises(MissingFact, match=r"config\.n_head is .*, which is no number of heads") as caught:
        found(tmp_path, {"n_head": value})
    assert repr(value) in caught.value.sentence


@pytest.mark.parametrize(
    ("value", "scale"),
    [(2.83, "head"), (8**-0.5, "head"), (-1.0, "head"), ("2.8284", "head"), (math.sqrt(32), "embd"), ("embd", "embd")],
)
def test_what_scores_are_divided_by_as_a_number(tmp_path, value, scale):
    assert found(tmp_path, {"attn_scale": value}).spec.attn_scale == scale


def test_what_scores_are_divided_by_can_be_neither(tmp_path):
    with pytest.raises(UnknownLayout, match=r"config\.attn_scale is 1\.0"):
        found(tmp_path, {"attn_scale": 1.0})


# ------------------------------------------------------------------------------------------ where they lie

HEADS = {"n_head": 4}


def saved(path, **beside):
    torch.save({"model": KEYS, **beside}, path)
    return open_checkpoint(path)


@pytest.mark.parametrize(
    "beside",
    [
        {"config": {"model": HEADS, "train": {"lr": 0.1}}},
        {"hyper_parameters": {"config": HEADS}},
        {"hyper_parameters": {"model_cfg": HEADS}},
        {"args": {"config": {"model": {"gpt": HEADS}}}},
        {"config": json.dumps(HEADS)},
        {"hparams": {"config": json.dumps({"model": HEADS})}},
        *({group: HEADS} for group in ("gpt_config", "GPTConfig", "model_cfg", "hyperparameters", "model_hparams")),
        *({group: HEADS} for group in ("model_params", "settings", "init_args")),
    ],
    ids=str,
)
def test_a_group_of_settings_is_found(tmp_path, beside):
    assert recognise(saved(tmp_path / "m.pt", **beside)).spec.n_head == 4


def test_what_is_in_a_group_counts_before_the_group(tmp_path):
    checkpoint = saved(tmp_path / "m.pt", config={"n_head": 8, "model": HEADS})
    assert list(checkpoint.settings) == ["config.model", "config"]
    assert recognise(checkpoint).spec.n_head == 4


@pytest.mark.parametrize("text", ["{not json", "[1, 2]", "[" * 5000, "plain"])
def test_a_text_that_is_no_group_is_none(tmp_path, text):
    assert "config" not in saved(tmp_path / "m.pt", config=text).settings


@pytest.mark.parametrize("metadata", [{"n_head": "4"}, {"config": json.dumps(HEADS)}])
def test_metadata_of_safetensors(tmp_path, metadata):
    save_file({n: t.clone() for n, t in KEYS.items()}, tmp_path / "m.safetensors", metadata=metadata)
    assert recognise(open_checkpoint(tmp_path / "m.safetensors")).spec.n_head == 4


def test_the_configuration_beside_a_file_with_hugging_face_s_name(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(HEADS).encode())
    for name in ("pytorch_model.bin", "model.safetensors", "mine.pt"):
        save_file({n: t.clone() for n, t in KEYS.items()}, tmp_path / name)
    for name in ("pytorch_model.bin", "model.safetensors"):
        checkpoint = open_checkpoint(tmp_path / name)
        assert checkpoint.warnings == ("config.json beside it was read as well",)
        assert recognise(checkpoint).spec.n_head == 4
    assert not open_checkpoint(tmp_path / "mine.pt").settings
    assert recognise(open_checkpoint(tmp_path)).spec.n_head == 4
