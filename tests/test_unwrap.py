"""What stands in front of all names, and what lies beside the model."""

import pytest
import tiny
import torch
from safetensors.torch import save_file

from modernize.checkpoint import open_checkpoint
from modernize.dialects import DIALECTS, cover
from modernize.errors import AmbiguousInput, UnknownLayout, UnreadableFile
from modernize.facts import Facts
from modernize.inspection import inspect
from modernize.recognise import recognise

SPEC = tiny.spec()
FACTS = Facts(n_head=4, activation="gelu")


def keys(dialect="nanogpt", *, seed=0, prefix=""):
    of = tiny.spec(tied=False)
    made = tiny.as_dialect(tiny.jittered(of, seed), of, tiny.dialect(dialect))
    return {prefix + name: tensor for name, tensor in made.items()}


def state_of(path, **how):
    return recognise(open_checkpoint(path, **how), FACTS).state()


def same(state, *, seed=0):
    wanted = tiny.jittered(tiny.spec(tied=False), seed)
    return all(torch.equal(state[name], wanted[name]) for name in wanted)


def saved(path, plain):
    torch.save(plain, path)
    return path


PREFIXES = [
    "model.",
    "net.",
    "gpt.",
    "model.net.",
    "module.model.",
    "model._orig_mod.",
    "_orig_mod.module.gpt.",
    "a.b.c.",
]


@pytest.mark.parametrize("dialect", ["nanogpt", "gpt2", "lecture", "book", "mingpt-2020"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_stands_in_front_of_all_names_is_taken_off(tmp_path, dialect, prefix):
    path = saved(tmp_path / "m.ckpt", {"state_dict": keys(dialect, prefix=prefix), "epoch": 3})
    found = recognise(open_checkpoint(path), Facts(dialect=dialect, n_head=4, activation="gelu"))
    assert found.dialect.name == dialect
    assert same(found.state())


def test_in_safetensors_too(tmp_path):
    save_file({n: t.clone() for n, t in keys(prefix="model.").items()}, tmp_path / "m.safetensors")
    assert same(state_of(tmp_path / "m.safetensors"))


@pytest.mark.parametrize("prefix", ["", "net."])
def test_what_is_measured_beside_the_model_is_told_and_ignored(tmp_path, prefix):
    beside = {
        "val_metrics.ppl.total": torch.tensor(3.0), "loss_fn.weight": torch.ones(61), "global_step": torch.tensor(7),
    }  # fmt: skip
    path = saved(tmp_path / "m.ckpt", {"state_dict": keys(prefix=prefix) | beside, "hyper_parameters": {"n_head": 4}})
    assert same(state_of(path))
    found = inspect(path, facts=FACTS)
    assert {t.name for t in found.tensors if t.fate == "ignored"} == set(beside)
    assert len(found.tensors) == len(keys()) + 3


@pytest.mark.parametrize(
    ("prefix", "extra"),
    [
        ("net.", "head.weight"),
        ("net.", "decoder.proj.weight"),
        ("", "adapter.weight"),
        ("", "loss_fn.proj.weight"),
        ("", "transformer.h.1.attn.gate.weight"),
        ("net.", "net.transformer.h.1.attn.gate.weight"),
    ],
)
def test_a_matrix_that_no_dialect_knows_is_never_ignored(tmp_path, prefix, extra):
    path = saved(tmp_path / "m.pt", keys(prefix=prefix) | {extra: torch.ones(61, 32)})
    with pytest.raises(UnknownLayout, match=extra.removeprefix("net.")):
        state_of(path)


def test_a_vector_beside_the_model_needs_a_word_that_says_what_it_is(tmp_path):
    """A norm behind the embedding would change every prediction."""
    with pytest.raises(UnknownLayout, match=r"emb_norm\.weight"):
        state_of(saved(tmp_path / "m.pt", keys() | {"emb_norm.weight": torch.ones(32)}))


def test_two_names_that_become_one_are_both_told(tmp_path):
    both = keys(prefix="net.") | {"transformer.ln_f.bias": torch.ones(32)}
    with pytest.raises(AmbiguousInput, match=r"net\.transformer\.ln_f\.bias and transformer\.ln_f\.bias"):
        state_of(saved(tmp_path / "m.pt", both))


@pytest.mark.parametrize("prefix", ["", "net."])
@pytest.mark.parametrize("shape", [(16,), (1, 16)])
def test_numbers_of_positions_are_ignored(tmp_path, prefix, shape):
    name = prefix + "transformer.position_ids"
    path = saved(tmp_path / "m.pt", keys(prefix=prefix) | {name: torch.arange(16).view(shape)})
    assert same(state_of(path))
    path = saved(tmp_path / "m.pt", keys(prefix=prefix) | {name: torch.arange(16).flip(0).view(shape)})
    with pytest.raises(UnknownLayout, match="position_ids"):
        state_of(path)


def test_averaged_weights_by_their_names(tmp_path):
    both = keys(prefix="model.") | keys(seed=1, prefix="ema_model.") | {"ema_model.n_averaged": torch.tensor(3)}
    path = saved(tmp_path / "m.ckpt", {"state_dict": both})
    assert same(state_of(path))
    assert same(state_of(path, weights="ema"), seed=1)
    save_file({n: t.clone() for n, t in both.items()}, tmp_path / "m.safetensors")
    assert same(state_of(tmp_path / "m.safetensors", weights="ema"), seed=1)
    with pytest.raises(UnreadableFile, match="no averaged weights"):
        open_checkpoint(saved(tmp_path / "n.pt", keys()), weights="ema")


def test_averaged_weights_that_are_no_model(tmp_path):
    path = saved(tmp_path / "m.pt", keys() | {"ema_model.decay": torch.tensor(0.9)})
    assert same(state_of(path))
    with pytest.raises(AmbiguousInput, match="no whole model"):
        state_of(path, weights="ema")


@pytest.mark.parametrize("prefix", ["", "model."])
def test_averaged_weights_whose_names_have_no_dots(tmp_path, prefix):
    """As LitEma keeps them."""
    both = keys(prefix=prefix) | {f"model_ema.{n.replace('.', '')}": t for n, t in keys(seed=1).items()}
    both |= {"model_ema.decay": torch.tensor(0.9), "model_ema.num_updates": torch.tensor(3)}
    assert same(state_of(saved(tmp_path / "m.ckpt", {"state_dict": both})))
    with pytest.raises(UnknownLayout, match="gate"):
        state_of(saved(tmp_path / "n.ckpt", {"state_dict": both | {"model_ema.gate": torch.ones(32, 32)}}))


def test_a_part_called_ema_inside_a_model_is_no_averaged_weight(tmp_path):
    with pytest.raises(UnknownLayout, match=r"h\.0\.attn\.ema\.alpha"):
        state_of(saved(tmp_path / "m.pt", keys() | {"transformer.h.0.attn.ema.alpha": torch.ones(32)}))


def test_a_dictionary_that_holds_itself_ends(tmp_path):
    plain = {"args": {"n_head": 4}}
    plain["model"] = plain
    with pytest.raises(UnreadableFile, match="holds itself"):
        open_checkpoint(saved(tmp_path / "m.pt", plain))


def test_two_models_in_one_file(tmp_path):
    both = keys(prefix="generator.") | keys(seed=1, prefix="critic.")
    with pytest.raises(AmbiguousInput, match=r"critic\., generator\."):
        state_of(saved(tmp_path / "m.pt", both))


@pytest.mark.parametrize(
    "words", [("net",), ("params",), ("checkpoint", "model"), ("state_dict", "module"), ("weights",)]
)
def test_weights_in_what_holds_them(tmp_path, words):
    plain = keys()
    for word in reversed(words):
        plain = {word: plain, "args": {"n_head": 4}, "step": 5}
    path = saved(tmp_path / "m.pt", plain)
    checkpoint = open_checkpoint(path)
    assert checkpoint.settings["args"] == {"n_head": 4}
    assert same(recognise(checkpoint, Facts(activation="gelu")).state())


@pytest.mark.parametrize("word", ["ema", "state_dict_ema", "model_ema"])
def test_averaged_weights_in_a_place_of_their_own(tmp_path, word):
    path = saved(tmp_path / "m.pt", {"model": keys(), word: {"shadow": keys(seed=1)}})
    assert same(state_of(path))
    assert same(state_of(path, weights="ema"), seed=1)


# ------------------------------------------------------------------------------------------ trained and averaged


@pytest.mark.parametrize("dialect", ["nanogpt", "course-apart", "mingpt-2020"])
def test_trained_weights_that_do_not_fit_are_never_replaced_by_averaged_ones(tmp_path, dialect):
    trained = keys(dialect, prefix="model.") | {"model.memory_token": torch.ones(1, 32)}
    path = saved(tmp_path / "m.pt", trained | keys(dialect, seed=1, prefix="ema_model."))
    with pytest.raises(UnknownLayout, match=rf"nearest to {dialect}, but it has memory_token") as caught:
        state_of(path)
    assert "--weights ema" in caught.value.hint
    assert same(state_of(path, weights="ema"), seed=1)


def test_averaged_weights_that_do_not_fit_are_not_replaced_either(tmp_path):
    averaged = keys(seed=1, prefix="ema.") | {"ema.memory_token": torch.ones(1, 32)}
    path = saved(tmp_path / "m.pt", keys(prefix="model.") | averaged)
    assert same(state_of(path))
    with pytest.raises(UnknownLayout, match="memory_token") as caught:
        state_of(path, weights="ema")
    assert "leave --weights out" in caught.value.hint


def test_averaged_weights_alone_are_taken_aloud(tmp_path):
    path = saved(tmp_path / "m.pt", keys(prefix="ema_model.") | {"ema_model.n_averaged": torch.tensor(3)})
    found = recognise(open_checkpoint(path), FACTS)
    assert same(found.state())
    assert any("no weights but averaged ones, under ema_model." in warning for warning in found.warnings)
    assert not any("averaged" in warning for warning in recognise(open_checkpoint(path, weights="ema"), FACTS).warnings)


@pytest.mark.parametrize("weights", ["model", "ema"])
def test_a_matrix_beside_averaged_weights_is_not_ignored(tmp_path, weights):
    path = saved(tmp_path / "m.pt", keys(prefix="ema_model.") | {"value_head.weight": torch.ones(4, 32)})
    with pytest.raises(UnknownLayout, match=r"under ema_model\. and beside it value_head\.weight"):
        state_of(path, weights=weights)


def test_a_part_with_such_a_name_is_no_set_of_weights(tmp_path):
    with pytest.raises(UnknownLayout, match=r"ema_proj\.weight"):
        state_of(saved(tmp_path / "m.pt", keys() | {"ema_proj.weight": torch.ones(32, 32)}))


@pytest.mark.parametrize("prefix", ["ema_codebook.", "value."])
@pytest.mark.parametrize("weights", ["model", "ema"])
def test_an_embedding_makes_no_set_of_weights(tmp_path, prefix, weights):
    other = {f"{prefix}embedding.weight": torch.ones(61, 32), f"{prefix}cluster_size": torch.ones(61)}
    path = saved(tmp_path / "m.pt", keys(prefix="model.") | keys(seed=1, prefix="ema_model.") | other)
    with pytest.raises(UnknownLayout, match=rf"beside it {prefix}embedding"):
        state_of(path, weights=weights)


def test_averaged_weights_beside_a_model_without_a_prefix(tmp_path):
    path = saved(tmp_path / "m.pt", keys() | keys(seed=1, prefix="ema."))
    assert same(state_of(path))
    assert same(state_of(path, weights="ema"), seed=1)
    found = inspect(path, facts=FACTS, weights="ema")
    assert {t.name for t in found.tensors if t.fate == "ignored"} == set(keys())


def test_what_does_not_fit_is_named_and_not_what_a_shorter_reading_leaves_over(tmp_path):
    """Without its head, `model.transformer.` is in front of a whole GPT-2."""
    averaged = keys(seed=1, prefix="ema_model.")
    path = saved(tmp_path / "m.pt", keys(prefix="model.") | {"model.memory_token": torch.ones(1, 32)} | averaged)
    with pytest.raises(UnknownLayout) as caught:
        state_of(path)
    assert "lm_head" not in caught.value.sentence


def test_what_is_measured_may_be_there_twice(tmp_path):
    beside = {"criterion.weight": torch.ones(61), "model.criterion.weight": torch.ones(61)}
    path = saved(tmp_path / "m.pt", keys(prefix="model.") | beside)
    assert same(state_of(path))
    assert {t.name for t in inspect(path, facts=FACTS).tensors if t.fate == "ignored"} == set(beside)


@pytest.mark.parametrize("name", ["val_metrics.acc[top1].total", "loss.{i}.x", "step.{a|b}"])
def test_a_name_that_looks_like_a_template_is_a_name(tmp_path, run, name):
    path = saved(tmp_path / "m.pt", keys() | {name: torch.tensor(1.0)})
    (ignored,) = (t for t in inspect(path, facts=FACTS).tensors if t.fate == "ignored")
    assert (ignored.name, ignored.kind) == (name, name)
    assert (
        run("convert", path, tmp_path / "n.safetensors", "--init", "fold", "--n-head", 4, "--activation", "gelu").code
        == 0
    )


def test_of_many_embeddings_a_few_are_tried(tmp_path, monkeypatch):
    from modernize import unwrap as module

    tried = []
    monkeypatch.setattr(module, "cover", lambda dialect, own: tried.append(dialect) or cover(dialect, own))
    with pytest.raises(UnknownLayout):
        state_of(saved(tmp_path / "m.pt", {f"features.f{n}.embedding.weight": torch.ones(3, 2) for n in range(300)}))
    assert len(tried) <= (module.MOST_PREFIXES + 1) * len(DIALECTS)
