"""Every dialect's table: it recognises the checkpoint that it makes itself, and nothing is forgotten."""

import ast
import itertools
import re
from pathlib import Path

import pytest
import tiny
import torch

import modernize.dialects as package
from modernize.checkpoint import open_checkpoint
from modernize.dialects import DIALECTS, cover
from modernize.dialects.ops import SCALE_INPUT
from modernize.errors import BadTensors, UnknownLayout
from modernize.facts import Facts
from modernize.recognise import recognise
from modernize.rewrite.plan import Plan

FOLDER = Path(package.__file__).parent
SHARED = {"__init__.py", "demands.py", "ops.py", "table.py", "setting_names.py", "spellings.py"}
by_name = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)


def spec_for(dialect, **change):
    """A spec that the dialect's programs could have trained."""
    if True not in dialect.tied:
        change["tied"] = False
    facts = {a.field: a.value for a in dialect.assumptions if a.field != "norm"}
    return tiny.spec(**{**facts, **change})


def saved(tmp_path, keys):
    torch.save(keys, tmp_path / "model.pt")
    return open_checkpoint(tmp_path / "model.pt")


def facts_for(spec, dialect):
    return Facts(dialect=dialect.name, n_head=spec.n_head, activation=spec.activation, norm="pre")


def made(spec, dialect, **how):
    """A State that the dialect can hold, and the keys of a file that holds it."""
    state = tiny.fitted(tiny.jittered(spec), spec, dialect)
    return state, tiny.as_dialect(state, spec, dialect, **how)


@by_name
@pytest.mark.parametrize(
    "biases", [tiny.ALL_BIASES, (), (*tiny.ALL_BIASES, "head")], ids=["biases", "none", "head too"]
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("spelling", [0, 1])
def test_a_dialect_recognises_what_its_table_makes(tmp_path, dialect, biases, tied, spelling):
    spec = spec_for(dialect, biases=biases, tied=tied)
    state, keys = made(spec, dialect, spelling=spelling)
    checkpoint = saved(tmp_path, keys)
    found = recognise(checkpoint, facts_for(spec, dialect))
    assert found.dialect is dialect
    assert found.spec == spec
    back = found.state()
    assert list(back) == list(spec.shapes())
    assert all(torch.equal(back[name], state[name]) for name in state)


@by_name
def test_every_required_key_is_missed_by_name(dialect):
    spec = spec_for(dialect, biases=())
    _, keys = made(spec, dialect)
    optional = {r.source for r in dialect.rules if r.optional}
    for key in keys:
        found = cover(dialect, [k for k in keys if k != key])
        if not any(r.pattern.fullmatch(key) for r in dialect.rules if r.source in optional):
            assert found.missing == (key,)


@by_name
def test_a_bias_in_one_layer_only_is_missed_in_the_other(dialect):
    spec = spec_for(dialect)
    _, keys = made(spec, dialect)
    optional = [r for r in dialect.rules if r.optional]
    gone = next(k for k in keys if ".1." in k and (k.endswith("bias") or any(r.pattern.fullmatch(k) for r in optional)))
    assert cover(dialect, [k for k in keys if k != gone]).missing == (gone,)


@by_name
def test_an_extra_key_is_named(tmp_path, dialect):
    spec = spec_for(dialect)
    _, keys = made(spec, dialect)
    block = next(k for k in keys if ".1." in k).split(".1.")[0] + ".1.gate.weight"
    with pytest.raises(UnknownLayout, match=block) as caught:
        recognise(saved(tmp_path, keys | {block: torch.ones(4, 4)}), facts_for(spec, dialect))
    assert dialect.name in str(caught.value)


@by_name
def test_a_layer_that_is_missing_as_a_whole_is_named(tmp_path, dialect):
    spec = spec_for(dialect, n_layer=3)
    _, keys = made(spec, dialect)
    with pytest.raises(UnknownLayout, match=r"\.1\."):
        recognise(saved(tmp_path, {k: v for k, v in keys.items() if ".1." not in k}), facts_for(spec, dialect))


@by_name
def test_no_two_rows_claim_one_key(dialect):
    spec = spec_for(dialect, biases=(*tiny.ALL_BIASES, "head"))
    keys = list(made(spec, dialect)[1])
    keys += [rule.key() for rule in dialect.rules if not rule.targets]
    for key in keys:
        assert sum(bool(rule.pattern.fullmatch(key)) for rule in dialect.rules) == 1


@by_name
def test_buffers_are_ignored(tmp_path, dialect):
    spec = spec_for(dialect)
    _, keys = made(spec, dialect)
    buffers = {
        r.key(i=i, j=j): torch.ones(16, 16, dtype=torch.uint8)
        for r in dialect.rules
        if not r.targets
        for i, j in itertools.product(range(2), range(4 if "{j}" in r.source else 1))
    }
    found = recognise(saved(tmp_path, keys | buffers), facts_for(spec, dialect))
    assert found.spec == spec


@by_name
def test_every_key_has_a_fate(tmp_path, dialect):
    from modernize.inspection import fates_of

    spec = spec_for(dialect)
    _, keys = made(spec, dialect)
    found = recognise(saved(tmp_path, keys), facts_for(spec, dialect))
    for plan in (Plan(), Plan(bias="keep"), Plan(init="reset")):
        fates = fates_of(found, plan)
        assert [f.name for f in fates] == list(keys)
        becomes = {new for f in fates for new in f.becomes}
        wanted = plan.config(spec).shapes()
        computed = {"head.bias"} | {n for n in wanted if n.endswith("bias")}  # made from shifts, where there was none
        assert set(wanted) - becomes <= computed | {n for n in wanted if n.endswith("gain")}
        assert becomes <= set(wanted)


@by_name
def test_rows_target_the_canonical_names_and_only_once(dialect):
    wanted = {name.replace(".0.", ".{i}.") for name in tiny.spec(n_layer=1, tied=False).shapes()}
    wanted |= {name.removesuffix("weight") + "bias" for name in wanted if name.endswith("weight")}
    targets = [t.format(i="{i}", p=p) for r in dialect.rules for t in r.targets for p in ("weight", "bias")]
    assert set(targets) <= wanted
    plain = [t for r in dialect.rules for t in r.targets if r.op is not SCALE_INPUT or t != "head.weight"]
    assert len(set(plain)) == len(plain)


def test_every_file_of_rows_is_listed():
    homes = {Path(f"{name}.py").name for name in (d.name.replace("-", "_") for d in DIALECTS)}
    assert homes == {p.name for p in FOLDER.glob("*.py")} - SHARED


@pytest.mark.parametrize("path", sorted(p for p in FOLDER.glob("*.py") if p.name not in SHARED), ids=lambda p: p.name)
def test_a_dialect_file_is_rows_and_nothing_else(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    forbidden = (ast.For, ast.While, ast.If, ast.FunctionDef, ast.ListComp, ast.DictComp, ast.GeneratorExp)
    assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, forbidden)]
    assert ".replace(" not in text


def spellings(source):
    """Every key that a template allows, in layer 0 and head 0."""
    holes = re.compile(r"\{([^{}]*)\}|\[([^\]]*)\]")
    fixed = holes.sub("\0", source).split("\0")
    words = [
        {"i": ["0"], "j": ["0"], "p": ["weight", "bias"]}.get(hole[1] or "", (hole[1] or "").split("|"))
        if hole[2] is None
        else ["", hole[2]]
        for hole in holes.finditer(source)
    ]
    for chosen in itertools.product(*words):
        yield fixed[0] + "".join(word + rest for word, rest in zip(chosen, fixed[1:], strict=True))


@by_name
def test_no_key_can_be_read_as_two_parts_of_a_model(dialect):
    parts = {}
    for rule in dialect.rules:
        for key in spellings(rule.source):
            assert parts.setdefault(key, rule) is rule
    made = [key for rule in dialect.rules for key in spellings(rule.source)]
    assert len(made) == len(set(made))


SPELLINGS = [
    {"token_embedding.": "embed.", "position_embedding.": "pos_embedding_table."},
    {"token_embedding.": "emb.", "position_embedding.": "positions_embed."},
    {"token_embedding.": "embeddings.token.", "position_embedding.": "embeddings.position."},
    {"token_embedding.": "tok_embeddings.", "position_embedding.": "positional_embeddings."},
    {"lm_head.": "fc."},
    {"lm_head.": "classifier."},
    {".mlp.0.": ".mlp.up_proj.", ".mlp.2.": ".mlp.down_proj."},
    {".mlp.0.": ".mlp.fc_1.", ".mlp.2.": ".mlp.fc_2."},
    {".mlp.0.": ".ff.linear_1.", ".mlp.2.": ".ff.linear_2."},
    {".mlp.0.": ".feed_forward.w_1.", ".mlp.2.": ".feed_forward.w_2."},
    {".query.": ".Wq.", ".key.": ".Wk.", ".value.": ".Wv.", ".proj.": ".Wo."},
    {".query.": ".queries.", ".key.": ".keys.", ".value.": ".values."},
    {".query.": ".c_q.", ".key.": ".c_k.", ".value.": ".c_v.", ".proj.": ".c_proj."},
    {".attn.": ".causal_self_attn."},
    {".attn.": ".multihead_attention."},
    {"token_embedding.": "embedding.token_embedding.", "position_embedding.": "embedding.position_embedding."},
    {"blocks.": "transformer.layers."},
    *(
        {word: f"{trunk}.{word}" for word in ("token_embedding.", "position_embedding.", "blocks.", "ln_f.")}
        for trunk in ("transformer", "decoder", "backbone", "model", "gpt")
    ),
    {".ln1.": ".attention_norm.", ".ln2.": ".ff_norm."},
    {"blocks.": "decoder_layers."},
    {"blocks.0.": "blocks.0._fsdp_wrapped_module."},
    {"blocks.1.": "blocks.1._checkpoint_wrapped_module."},
]


@pytest.mark.parametrize("words", SPELLINGS, ids=lambda words: ", ".join(words.values()))
def test_a_course_model_however_it_is_spelled(tmp_path, words):
    spec = tiny.spec(tied=False)
    state = tiny.jittered(spec)
    plain = {"wte.": "token_embedding.", "wpe.": "position_embedding.", "head.": "lm_head.", "h.0.": "blocks.0."}
    plain |= {"h.1.": "blocks.1.", ".ln_1.": ".ln1.", ".ln_2.": ".ln2.", ".mlp.up.": ".mlp.0.", ".mlp.down.": ".mlp.2."}
    plain |= {f".attn.{a}.": f".attn.{b}." for a, b in zip("qkvo", ("query", "key", "value", "proj"), strict=True)}

    def spelled(name):
        for table in (plain, words):
            for old, new in table.items():
                at = name.find(old)
                if at == 0 or (at > 0 and old.startswith(".")):
                    name = name[:at] + new + name[at + len(old) :]
        return name

    found = recognise(saved(tmp_path, {spelled(n): t for n, t in state.items()}), Facts(n_head=4, activation="gelu"))
    assert (found.dialect.name, found.spec) == ("course-apart", spec)
    assert all(torch.equal(found.state()[name], state[name]) for name in state)


def test_a_head_that_is_no_head_of_the_vocabulary_is_refused(tmp_path):
    spec, dialect = tiny.spec(tied=False), tiny.dialect("course-apart")
    keys = {k: v for k, v in made(spec, dialect)[1].items() if not k.startswith("lm_head")}
    with pytest.raises(BadTensors, match=r"classifier\.weight"):
        recognise(saved(tmp_path, keys | {"classifier.weight": torch.ones(10, 32)}), Facts(n_head=4, activation="gelu"))


def test_one_tensor_under_two_names_is_one_where_both_are_equal(tmp_path):
    spec, dialect = tiny.spec(activation="gelu_tanh"), tiny.dialect("gpt2")
    state, keys = made(spec, dialect)
    whole = dict.fromkeys(("lm_head.decoder.weight", "lm_head.weight"), keys["lm_head.weight"])
    for both in (whole, dict(reversed(whole.items()))):
        found = recognise(saved(tmp_path, {**keys, **both}), facts_for(spec, dialect))
        assert all(torch.equal(found.state()[name], state[name]) for name in state)
    odd = {"lm_head.decoder.weight": keys["lm_head.weight"] + 1}
    with pytest.raises(UnknownLayout, match="are the same tensor"):
        recognise(saved(tmp_path, keys | odd), facts_for(spec, dialect))


def test_names_are_distinct():
    assert len({d.name for d in DIALECTS}) == len(DIALECTS)


def test_the_command_lists_them_all(run):
    listed = run("dialects", "--json").json
    assert [d["name"] for d in listed["dialects"]] == [d.name for d in DIALECTS]
    shown = run("dialects").out
    assert all(rule.source in shown for d in DIALECTS for rule in d.rules if rule.targets)


@by_name
def test_every_spelling_of_a_row_is_claimed(dialect):
    for rule in dialect.rules:
        assert all(rule.pattern.fullmatch(rule.key(i=3, j=2, spelling=n)) for n in range(12))
        assert rule.respelled(rule.key(i=3, j=2), i=5) == rule.key(i=5, j=2)


@pytest.mark.parametrize("name", ["course-apart", "course-heads", "torch-encoder"])
def test_two_stacks_of_layers_do_not_become_one(tmp_path, name):
    dialect = tiny.dialect(name)
    spec = spec_for(dialect, activation="relu")
    first, second = made(spec, dialect)[1], made(spec, dialect, spelling=1)[1]
    before = {key for key in first if key not in second and ".1." in key}
    mixed = {k: v for k, v in first.items() if k not in before} | {k: v for k, v in second.items() if ".1." in k}
    with pytest.raises(UnknownLayout, match=r"it has (blocks\.0|layers\.1|.*\.1)\..*, which no row knows"):
        recognise(saved(tmp_path, mixed), facts_for(spec, dialect))


def test_what_may_be_absent_is_absent_in_all_keys_alike():
    dialect = tiny.dialect("gpt2")
    keys = made(spec_for(dialect), dialect)[1]
    mixed = [key.removeprefix("transformer.") if ".h.1." in key else key for key in keys]
    assert cover(dialect, mixed).unknown == tuple(key for key in mixed if key.startswith("h.1."))


def test_numbers_far_out_cost_nothing():
    dialect = tiny.dialect("lecture")
    found = cover(dialect, [f"a{n}" for n in range(500)] + ["blocks.499.sa.heads.499.query.weight"])
    assert len(found.unknown) == 501
    keys = list(made(spec_for(dialect), dialect)[1])
    found = cover(dialect, keys + [f"blocks.{i}.sa.heads.{j}.query.weight" for i in range(60) for j in range(60)])
    assert found.n_layer * found.n_head == 3600
    assert found.lacking > 3600
    assert len(found.missing) < 100
