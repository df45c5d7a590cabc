"""Facts: where they come from, what is assumed aloud, what is asked for, what contradicts."""

import pytest
import tiny
import torch

from modernize.checkpoint import open_checkpoint
from modernize.errors import BadTensors, InputRefused, MissingFact, UnknownLayout, UsageError
from modernize.facts import Facts
from modernize.inspection import inspect
from modernize.recognise import recognise


def save(path, obj):
    torch.save(obj, path)
    return open_checkpoint(path)


def keys(dialect="nanogpt", **change):
    spec = tiny.spec(**change)
    return tiny.as_dialect(tiny.jittered(spec), spec, tiny.dialect(dialect))


def nano_file(tmp_path, *, args=None, state=None, **change):
    spec = tiny.spec(**change)
    return open_checkpoint(tiny.save_nano(tmp_path / "n.pt", spec, args=args, state=state))


def test_the_envelope_says_nanogpt_and_its_gelu_is_assumed_aloud(tmp_path):
    found = recognise(nano_file(tmp_path))
    assert (found.dialect.name, found.spec.activation, found.spec.n_head) == ("nanogpt", "gelu", 4)
    assert any("activation is assumed to be gelu" in w and "--activation" in w for w in found.warnings)
    assert not recognise(nano_file(tmp_path), Facts(activation="gelu")).warnings


def test_a_bare_untied_state_dict_could_be_two_and_asks_for_everything_at_once(tmp_path):
    with pytest.raises(MissingFact) as caught:
        recognise(save(tmp_path / "m.pt", keys(tied=False)))
    assert "nanogpt" in caught.value.sentence
    assert "mingpt" in caught.value.sentence
    assert "--n-head" in caught.value.hint
    assert "--activation gelu|gelu_tanh" in caught.value.hint


def test_what_the_user_says_chooses_the_dialect(tmp_path):
    checkpoint = save(tmp_path / "m.pt", keys(tied=False))
    assert recognise(checkpoint, Facts(n_head=4, activation="gelu_tanh")).dialect.name == "mingpt"
    assert recognise(checkpoint, Facts(n_head=4, activation="gelu")).dialect.name == "nanogpt"
    assert recognise(checkpoint, Facts(n_head=4, dialect="mingpt")).spec.activation == "gelu_tanh"


def test_a_tied_head_rules_mingpt_out(tmp_path):
    assert recognise(save(tmp_path / "m.pt", keys()), Facts(n_head=4)).dialect.name == "nanogpt"


def test_no_n_head_is_asked_for(tmp_path):
    with pytest.raises(MissingFact, match="heads") as caught:
        recognise(save(tmp_path / "m.pt", keys()), Facts(activation="gelu"))
    assert "--n-head" in caught.value.hint


@pytest.mark.parametrize("n_head", [0, -1])
def test_a_number_of_heads_that_is_none(tmp_path, n_head):
    with pytest.raises(UsageError, match=f"--n-head {n_head} is no number of heads"):
        recognise(nano_file(tmp_path), Facts(n_head=n_head))


@pytest.mark.parametrize("n_head", [3, 5])
def test_heads_that_do_not_divide_the_width(tmp_path, n_head):
    with pytest.raises(BadTensors, match=f"{n_head} does not divide the width 32"):
        recognise(nano_file(tmp_path), Facts(n_head=n_head))


def test_odd_heads_cannot_carry_rope(tmp_path):
    spec = tiny.spec(n_embd=36)
    path = tiny.save_nano(tmp_path / "n.pt", spec)
    with pytest.raises(BadTensors, match="9 wide"):
        recognise(open_checkpoint(path))


def test_heads_are_counted_from_keys(tmp_path):
    lecture = keys("lecture", tied=False, activation="relu")
    assert recognise(save(tmp_path / "m.pt", lecture)).spec.n_head == 4
    with pytest.raises(BadTensors, match="4 heads by its keys, but --n-head says 2"):
        recognise(save(tmp_path / "m.pt", lecture), Facts(n_head=2))


def test_head_ten_comes_after_head_nine(tmp_path):
    spec = tiny.spec(n_head=12, n_embd=24, tied=False, activation="relu")
    state = tiny.jittered(spec)
    found = recognise(save(tmp_path / "m.pt", tiny.as_dialect(state, spec, tiny.dialect("lecture"))))
    assert torch.equal(found.state()["h.0.attn.q.weight"], state["h.0.attn.q.weight"])


def test_the_lecture_warns_of_both_assumptions(tmp_path):
    found = recognise(save(tmp_path / "m.pt", keys("lecture", tied=False)))
    assert [w.split()[0] for w in found.warnings] == ["activation", "attn_scale"]
    found = recognise(save(tmp_path / "m.pt", keys("lecture", tied=False)), Facts(activation="gelu", attn_scale="embd"))
    assert (found.spec.activation, found.spec.attn_scale, found.warnings) == ("gelu", "embd", ())


@pytest.mark.parametrize(("field", "wrong", "right"), [("vocab_size", 50257, 61), ("block_size", 1024, 16)])
def test_settings_that_disagree_are_told_with_both_numbers(tmp_path, field, wrong, right):
    found = recognise(nano_file(tmp_path, args=tiny.model_args(tiny.spec(), **{field: wrong})))
    assert getattr(found.spec, field) == right
    assert any(str(wrong) in w and str(right) in w for w in found.warnings)


@pytest.mark.parametrize(("field", "wrong"), [("n_layer", 3), ("n_embd", 64)])
def test_settings_that_say_more_than_there_is_are_refused(tmp_path, field, wrong):
    with pytest.raises(BadTensors, match=f"{wrong}"):
        recognise(nano_file(tmp_path, args=tiny.model_args(tiny.spec(), **{field: wrong})))


def test_other_names_of_settings_are_understood(tmp_path):
    args = {"num_layers": 2, "num_heads": 4, "dim_embedding": 32, "seq_length": 16, "vocab_size": 61}
    assert recognise(nano_file(tmp_path, args=args)).spec.n_head == 4


def test_the_option_wins_over_the_setting_and_says_so(tmp_path):
    found = recognise(nano_file(tmp_path), Facts(n_head=2, activation="gelu"))
    assert found.spec.n_head == 2
    assert "says 4 heads; --n-head 2 was taken" in found.warnings[0]


def test_fused_projections_in_another_order(tmp_path):
    spec = tiny.spec()
    state = tiny.jittered(spec)
    turned = dict(state)
    for i in range(2):
        for p in ("weight", "bias"):
            q, k, v = (state[f"h.{i}.attn.{part}.{p}"] for part in "qkv")
            turned |= {f"h.{i}.attn.q.{p}": k, f"h.{i}.attn.k.{p}": v, f"h.{i}.attn.v.{p}": q}
    found = recognise(nano_file(tmp_path, state=turned), Facts(qkv_order="k,v,q"))
    assert all(torch.equal(found.state()[n], state[n]) for n in state)
    with pytest.raises(UsageError, match="q,k"):
        recognise(nano_file(tmp_path), Facts(qkv_order="q,k"))


def test_square_matrices_are_turned_by_layout_not_by_shape(tmp_path):
    spec = tiny.spec(n_inner=32, activation="gelu_tanh")
    state = tiny.jittered(spec)
    keys = tiny.as_dialect(state, spec, tiny.dialect("gpt2"))
    found = recognise(save(tmp_path / "m.pt", keys), Facts(n_head=4))
    assert found.dialect.name == "gpt2"
    assert all(torch.equal(found.state()[n], state[n]) for n in state)


def test_gpt2_without_its_prefix_and_without_a_head(tmp_path):
    bare = {k.removeprefix("transformer."): v for k, v in keys("gpt2").items() if "lm_head" not in k}
    found = recognise(save(tmp_path / "m.pt", bare), Facts(n_head=4))
    assert (found.dialect.name, found.spec.tied) == ("gpt2", True)
    del bare["h.1.ln_2.weight"]
    with pytest.raises(UnknownLayout, match=r"lacks h\.1\.ln_2\.weight"):
        recognise(save(tmp_path / "m.pt", bare), Facts(n_head=4))


def test_values_that_are_not_finite_are_named(tmp_path):
    spec = tiny.spec()
    state = tiny.jittered(spec)
    state["h.1.mlp.up.weight"][5, 7] = float("nan")
    with pytest.raises(BadTensors, match=r"transformer\.h\.1\.mlp\.c_fc\.weight holds values that are not finite"):
        recognise(nano_file(tmp_path, state=state)).state()


def test_integers_where_weights_should_be(tmp_path):
    quantized = keys()
    quantized["transformer.h.0.mlp.c_fc.weight"] = torch.ones(128, 32, dtype=torch.int8)
    with pytest.raises(BadTensors, match=r"transformer\.h\.0\.mlp\.c_fc\.weight is int8"):
        recognise(save(tmp_path / "m.pt", quantized), Facts(n_head=4))


def test_a_model_without_positions_is_told_so(tmp_path):
    rotary = {k: v for k, v in keys().items() if "wpe" not in k}
    with pytest.raises(UnknownLayout, match="no learned position table"):
        recognise(save(tmp_path / "m.pt", rotary), Facts(n_head=4))


def test_a_stranger_is_told_with_its_names(tmp_path):
    with pytest.raises(UnknownLayout, match=r"of no known dialect.*model\.embed_tokens\.weight"):
        recognise(save(tmp_path / "m.pt", {"model.embed_tokens.weight": torch.ones(3, 3)}))


def test_a_dialect_that_is_none(tmp_path):
    with pytest.raises(UsageError, match="megatron"):
        recognise(save(tmp_path / "m.pt", keys()), Facts(dialect="megatron"))


@pytest.mark.parametrize("value", ["quick_gelu", "swish", 7])
def test_an_activation_that_cannot_be_carried_over(tmp_path, value):
    with pytest.raises(UnknownLayout, match=r"model_args\.activation"):
        recognise(nano_file(tmp_path, args=tiny.model_args(tiny.spec(), activation=value)))


@pytest.mark.parametrize("n_head", ["4", 4.0, 4])
def test_numbers_of_settings_however_they_are_written(tmp_path, n_head):
    assert recognise(nano_file(tmp_path, args=tiny.model_args(tiny.spec(), n_head=n_head))).spec.n_head == 4


@pytest.mark.parametrize("eps", [-1.0, 1.0, float("nan"), float("inf")])
def test_an_epsilon_that_cannot_be(tmp_path, eps):
    with pytest.raises(UsageError, match="--norm-eps"):
        recognise(nano_file(tmp_path), Facts(norm_eps=eps))


@pytest.mark.parametrize("dialect", ["nanogpt", "nanogpt-gamma", "tok-emb", "gpt2"])
def test_a_tied_head_may_be_absent(tmp_path, dialect):
    bare = {k: v for k, v in keys(dialect).items() if "head" not in k}
    found = recognise(save(tmp_path / "m.pt", bare), Facts(n_head=4, activation="gelu"))
    assert (found.dialect.name, found.spec.tied) == (dialect, True)
    assert any("no head" in w for w in found.warnings)


@pytest.mark.parametrize("shape", [(32,), (16, 8), (2, 16, 16)])
def test_what_is_no_mask_is_not_dropped_as_one(tmp_path, shape):
    with pytest.raises(BadTensors, match=r"h\.0\.attn\.bias.*square"):
        recognise(save(tmp_path / "m.pt", keys() | {"transformer.h.0.attn.bias": torch.ones(shape)}), Facts(n_head=4))


@pytest.mark.parametrize("name", ["wte.weight", "wpe.weight"])
def test_empty_tables_are_refused(tmp_path, name):
    spec = tiny.spec(tied=False)
    state = tiny.jittered(spec)
    state[name] = state[name][:0]
    if name == "wte.weight":
        state["head.weight"] = state["head.weight"][:0]
    with pytest.raises(BadTensors, match="is 0"):
        recognise(nano_file(tmp_path, state=state, tied=False))


def test_a_stray_layer_number_does_not_make_a_giant(tmp_path):
    with pytest.raises(UnknownLayout, match=r"nearest to nanogpt, but it has transformer\.h\.999999\.ln_1\.weight"):
        recognise(save(tmp_path / "m.pt", keys() | {"transformer.h.999999.ln_1.weight": torch.ones(32)}))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["lstm.weight_ih_l0", "lstm.weight_hh_l0", "embedding.weight"], "recurrent"),
        (["rnn.weight_ih_l0_reverse"], "recurrent"),
        (["bert.embeddings.token_type_embeddings.weight", "bert.embeddings.word_embeddings.weight"], "BERT"),
        (["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"], "T5"),
        (["language_model.encoder.layers.0.attention.query_key_value.weight"], "interleaved"),
        (["gpt_neox.layers.0.attention.query_key_value.weight"], "GPT-NeoX"),
        (["layers.0.attention.query_key_value.weight", "layers.0.attention.rotary_emb.inv_freq"], "rotary positions"),
        (["word_embeddings_layernorm.weight", "h.0.self_attention.query_key_value.weight"], "BLOOM"),
        (["model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight", "lm_head.weight"], "gated MLP"),
        (["encoder.embedding.weight", "encoder.lstm.weight_ih_l0", "fc.weight"], "recurrent"),
        (
            ["encoder.tok_emb.weight", "decoder.tok_emb.weight", "decoder.layers.0.cross_attn.q.weight"],
            "cross-attention",
        ),
        (["model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight"], "gated MLP"),
        (["transformer.wte.weight", "transformer.h.0.attn.rotary_emb.inv_freq"], "rotary positions"),
        (["tok_emb.weight", "blocks.0.attn.wq.weight", "blocks.0.norm1.weight"], "RMSNorm"),
        (["embedding.weight", "pos_encoder.pe", "layers.0.norm1.weight", "layers.0.norm1.bias"], "sinusoidal"),
        (["model.layers.0.mlp.up_proj.qweight"], "quantized"),
        (["decoder.layers.0.multihead_attn.in_proj_weight"], "cross-attention"),
    ],
)
def test_a_model_of_another_kind_is_told_what_it_is(tmp_path, names, said):
    torch.save({name: torch.ones(8, 4) for name in names}, tmp_path / "m.pt")
    with pytest.raises(UnknownLayout, match=said) as found:
        recognise(open_checkpoint(tmp_path / "m.pt"))
    assert any(name.removeprefix("model.") in str(found.value) for name in names)


def test_a_bigram_model_is_told_that_it_is_one(tmp_path):
    torch.save({"token_embedding_table.weight": torch.ones(65, 65)}, tmp_path / "m.pt")
    with pytest.raises(UnknownLayout, match="bigram"):
        recognise(open_checkpoint(tmp_path / "m.pt"))


def test_a_model_under_a_prefix_is_claimed_only_where_it_is_whole(tmp_path):
    body = {f"net.{k}": v for k, v in keys().items() if ".h.1.ln_2" not in k}
    with pytest.raises(UnknownLayout, match=r"nearest to nanogpt, but it lacks .*ln_2.* and it has adapter\.weight"):
        recognise(save(tmp_path / "m.pt", body | {"adapter.weight": torch.ones(8, 4)}), Facts(n_head=4))


# ------------------------------------------------------------------------------------------ masks

LOWER = torch.ones(16, 16).tril()
NEVER = -torch.inf
CAUSAL = {
    "ones and zeros": LOWER,
    "with axes of one": LOWER.view(1, 1, 16, 16),
    "bool": LOWER.bool(),
    "uint8": LOWER.byte(),
    "int8": LOWER.to(torch.int8),
    "true where hidden": ~LOWER.bool(),
    "one where hidden": LOWER.new_ones(16, 16).triu(1),
    "added": torch.zeros(16, 16).masked_fill(LOWER == 0, NEVER),
    "added in bfloat16": torch.zeros(16, 16).masked_fill(LOWER == 0, -1e9).bfloat16(),
    "a number": torch.tensor(-1e4),
}
OTHER = {
    "banded": LOWER * torch.ones(16, 16).triu(-3),
    "all ones": torch.ones(16, 16),
    "nothing": torch.zeros(16, 16),
    "a prefix that is seen": (LOWER + (torch.arange(16) < 4)).clamp(max=1),
    "a number lower": torch.ones(16, 16).tril(-1),
    "slopes": torch.arange(16.0)[None, :].sub(torch.arange(16.0)[:, None]).tril(),
    "added slopes": torch.arange(16.0)[None, :].sub(torch.arange(16.0)[:, None]).masked_fill(LOWER == 0, NEVER),
    "not a number": torch.full((16, 16), torch.nan),
}
LAYERS = ("blocks.0.attn.mask", "blocks.1.attn.mask")


def masked(tmp_path, mask, layers=LAYERS):
    return save(tmp_path / "m.pt", keys("mingpt-2020") | dict.fromkeys(layers, mask))


@pytest.mark.parametrize("mask", CAUSAL.values(), ids=CAUSAL)
def test_a_causal_mask_is_dropped_however_it_is_written(tmp_path, mask):
    state = recognise(masked(tmp_path, mask), Facts(n_head=4)).state()
    assert all(torch.equal(tensor, tiny.jittered(tiny.spec())[name]) for name, tensor in state.items())
    assert inspect(tmp_path / "m.pt", facts=Facts(n_head=4)).dialect == "mingpt-2020"


@pytest.mark.parametrize("mask", OTHER.values(), ids=OTHER)
def test_another_mask_is_refused(tmp_path, mask):
    with pytest.raises(UnknownLayout, match=r"blocks\.1\.attn\.mask is no causal mask.*not plainly causal"):
        recognise(masked(tmp_path, mask, LAYERS[1:]), Facts(n_head=4)).state()
    with pytest.raises(UnknownLayout, match=r"blocks\.0\.attn\.mask is no causal mask"):
        masked(tmp_path, mask)
        inspect(tmp_path / "m.pt", facts=Facts(n_head=4))


def test_a_mask_of_integers_is_no_quantized_weight(tmp_path):
    mask = {"blocks.0.attn.tril": LOWER.to(torch.int8)}
    found = recognise(save(tmp_path / "m.pt", keys("course-apart") | mask), Facts(n_head=4, activation="relu"))
    assert found.dialect.name == "course-apart"


# ------------------------------------------------------------------------------------------ shapes, and who is blamed


@pytest.mark.parametrize("shape", [(), (61,), (61, 32, 1)])
@pytest.mark.parametrize(
    "name",
    ["transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.attn.c_attn.weight",
     "transformer.h.0.mlp.c_fc.weight"],
)  # fmt: skip
@pytest.mark.parametrize("dialect", ["nanogpt", "gpt2", "bigcode"])
def test_tensors_without_the_right_axes_are_named_in_words(tmp_path, dialect, name, shape):
    wrong = keys(dialect, tied=False) | {name: torch.ones(shape)}
    with pytest.raises(BadTensors, match=name.replace(".", r"\.")) as caught:
        recognise(save(tmp_path / "m.pt", wrong), Facts(n_head=4, dialect=dialect))
    assert "unpack" not in caught.value.sentence
    assert "index" not in caught.value.sentence


def test_the_dialect_that_fits_furthest_is_blamed(tmp_path):
    wrong = keys("gpt2") | {"transformer.h.1.mlp.c_fc.bias": torch.zeros(5)}
    with pytest.raises(BadTensors, match=r"names of gpt2, but transformer\.h\.1\.mlp\.c_fc\.bias"):
        recognise(save(tmp_path / "m.pt", wrong), Facts(n_head=4))


def test_an_order_where_nothing_is_fused_is_no_order(tmp_path):
    apart = save(tmp_path / "m.pt", keys("course-apart"))
    facts = {"n_head": 4, "activation": "relu"}
    with pytest.raises(UsageError, match="--qkv-order v,q,k"):
        recognise(apart, Facts(**facts, qkv_order="v,q,k"))
    assert recognise(apart, Facts(**facts, qkv_order="q, k, v")).dialect.name == "course-apart"


# ------------------------------------------------------------------------------------------ what many spellings hide


@pytest.mark.parametrize(
    "dialect", ["course-apart", "course-fused", "course-heads", "course-heads-alone", "course-mha"]
)
def test_a_dialect_of_many_spellings_says_what_it_cannot_know(tmp_path, dialect):
    spec = tiny.spec(activation="relu", biases=())
    state = tiny.fitted(tiny.jittered(spec), spec, tiny.dialect(dialect))
    bare = save(tmp_path / "m.pt", tiny.as_dialect(state, spec, tiny.dialect(dialect)))
    facts = {"n_head": 4, "activation": "relu"}
    said = " ".join(recognise(bare, Facts(**facts)).warnings)
    assert "norm is assumed to be pre" in said
    assert "RMSNorm has" in said
    assert ("interleave" in said) == (dialect == "course-fused")
    assert "norm is assumed" not in " ".join(recognise(bare, Facts(**facts, norm="pre")).warnings)
    shifted = recognise(save(tmp_path / "m.pt", keys(dialect)), Facts(**facts)) if "alone" not in dialect else None
    assert not shifted or "RMSNorm" not in " ".join(shifted.warnings)


def refused(tmp_path, tensors):
    with pytest.raises(InputRefused) as caught:
        recognise(save(tmp_path / "m.pt", tensors), Facts(n_head=4, activation="gelu"))
    return caught.value


def shaped(**shapes):
    """A course model, some of whose parts have other shapes, in both blocks."""
    parts = keys("course-apart", tied=False)
    return {
        name: next((torch.ones(shape) for part, shape in shapes.items() if f".{part}." in f".{name}"), tensor)
        for name, tensor in parts.items()
        if not (name.endswith("bias") and any(f".{part}." in f".{name}" for part in shapes))
    }


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"key": (16, 32), "value": (16, 32)}, "GQA or MQA"),
        ({"query": (64, 32), "key": (64, 32), "value": (64, 32), "proj": (32, 64)}, "attention of another width"),
        ({"0.weight": (256, 32)}, "gated MLP"),
        ({"lm_head": (10, 32)}, "head of 10 outputs for 61 tokens"),
    ],
    ids=str,
)
def test_shapes_of_another_kind_of_model_are_told(tmp_path, shapes, said):
    if "0.weight" in shapes:
        tensors = {n: torch.ones(256, 32) if "net.0.weight" in n else t for n, t in keys("course-apart").items()}
        tensors = {n: torch.ones(256) if "net.0.bias" in n else t for n, t in tensors.items()}
    else:
        tensors = shaped(**shapes)
    error = refused(tmp_path, tensors)
    assert said in error.sentence
    assert "other parts" in error.hint


def test_blocks_that_differ_are_told(tmp_path):
    tensors = keys("course-apart")
    for name, shape in (("0.weight", (64, 32)), ("0.bias", (64,)), ("2.weight", (32, 64))):
        tensors[f"blocks.1.mlp.net.{name}"] = torch.ones(shape)
    assert "MLPs differ in width" in refused(tmp_path, tensors).sentence


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "uint8", "int8"])
def test_quantized_weights_by_their_dtype(tmp_path, dtype):
    tensors = keys()
    tensors["transformer.h.0.mlp.c_fc.weight"] = torch.ones(128, 32).to(getattr(torch, dtype))
    error = refused(tmp_path, tensors)
    assert f"is {dtype}, so it holds quantized weights" in error.sentence


@pytest.mark.parametrize(
    ("old", "new", "gone"),
    [
        ("transformer.wpe.weight", "transformer.places.weight", "no learned position table"),
        (".mlp.c_fc.", ".mlp.widen.", "no MLP"),
        (".ln_1.", ".first.", "no LayerNorm"),
    ],
)
def test_a_part_under_another_name_is_not_said_to_be_missing(tmp_path, old, new, gone):
    error = refused(tmp_path, {name.replace(old, new): tensor for name, tensor in keys().items()})
    assert gone not in error.sentence
    assert "rename its keys to those of nanogpt" in error.hint
    error = refused(tmp_path, {name: tensor for name, tensor in keys().items() if old not in name})
    assert gone in error.sentence
    assert "rename" not in error.hint


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight", "LoRA adapter", "merge_and_unload"),
        ("transformer.h.0.attn.c_attn.base_layer.weight", "LoRA adapter", "merge_and_unload"),
        ("backbone.layers.0.mixer.A_log", "Mamba", "LayerNorm and learned positions"),
        ("blocks.0.mlp.experts.3.w1.weight", "mixture of experts", "LayerNorm and learned positions"),
        ("blocks.0.attn.alibi", "ALiBi", "LayerNorm and learned positions"),
        ("blocks.0.cross_attention.query.weight", "cross-attention", "LayerNorm and learned positions"),
        ("blocks.0.attn.cos_cached", "RoPE", "runtimes"),
    ],
)
def test_adapters_and_models_of_another_kind_are_named(tmp_path, name, said, hint):
    error = refused(tmp_path, {"transformer.wte.weight": torch.ones(61, 32), name: torch.ones(4, 32)})
    assert said in error.sentence
    assert hint in error.hint


def test_no_norm_shifts_and_no_positions_may_be_more_than_one_thing(tmp_path):
    names = ["wte.weight", "blocks.0.norm_1.weight", "blocks.0.attn.Wqkv.weight", "norm_f.weight"]
    error = refused(tmp_path, {f"transformer.{name}": torch.ones(32, 32) for name in names})
    assert "or with ALiBi" in error.sentence
