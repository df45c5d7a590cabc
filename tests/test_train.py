"""`finetune`: what is minimised, what is yielded, what is kept, what is refused."""

import json
import math
import shutil

import numpy as np
import pytest
import tiny
import torch
from safetensors import safe_open

import modernize
from modernize.data import load_corpus
from modernize.devices import choose_device
from modernize.errors import BadData, OneProcess, TrainingStopped, UsageError
from modernize.events import Finished, Notice, Settings, Started, Stepped, Validated
from modernize.loading import load
from modernize.measure import token_losses
from modernize.optim import build_optimizers, schedule
from modernize.recipe import DISTILL, DISTILL_OFTEN, OFTEN, choose_recipe
from modernize.sample import self_corpus
from modernize.train import default_batch_size, finetune

QUICK = {"steps": 12, "batch_size": 4, "device": "cpu"}


def events_of(path, data, **options):
    return list(finetune(load(path), data, **{**QUICK, **options}))


# ------------------------------------------------------------------------------------------ the engine


def test_events_come_in_order_and_add_up(new, data):
    found = events_of(new, data, eval_every=5)
    assert isinstance(found[0], Started)
    assert isinstance(found[-1], Finished)
    assert [e.step for e in found if isinstance(e, Stepped)] == list(range(1, 13))
    assert [e.step for e in found if isinstance(e, Validated)] == [5, 10, 12]
    assert found[-1].tokens == 12 * 4 * 16
    assert found[-1].best == min(found[0].before, *(e.loss for e in found if isinstance(e, Validated)))
    assert found[-1].after == [e.loss for e in found if isinstance(e, Validated)][-1]


def test_training_lowers_the_loss(new, data):
    found = events_of(new, data, steps=60, lr=1e-2)
    assert found[-1].best < found[0].before - 0.3


def test_the_same_seed_gives_the_same_weights(new, data):
    def weights(seed):
        model = load(new)
        list(finetune(model, data, **QUICK, seed=seed))
        return model.to_state()

    a, b, c = weights(1), weights(1), weights(2)
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not all(torch.equal(a[n], c[n]) for n in a)


def test_the_best_weights_are_kept(new, data):
    """A learning rate that ruins the model: what is left is the model before the first step."""
    model, before = load(new), load(new).to_state()
    found = list(finetune(model, data, **QUICK, lr=1.0, eval_every=4, optimizer="adamw"))
    assert found[-1].after > found[-1].best == found[0].before
    assert all(torch.equal(before[n], t) for n, t in model.to_state().items())


@pytest.mark.parametrize("block", [16, 24, 32])
def test_what_is_told_is_half_cross_entropy_and_half_kl(new, nano, data, block):
    """Without an update in between, the first step's loss is that of its own batch; matched states are not in it.

    A window past the teacher's context he reads in pieces.
    """
    student, teacher = load(new), load(nano)
    told = finetune(load(new), data, **QUICK, teacher=teacher, seed=3, block_size=block, target_context=block)
    step = next(e for e in told if isinstance(e, Stepped))
    corpus = load_corpus(data, tokenizer=lambda: None, vocab_size=61)
    starts = np.random.default_rng(3).integers(0, len(corpus.train) - block, 4)
    window = torch.from_numpy(np.stack([corpus.train[s : s + block + 1] for s in starts]).astype(np.int64))
    x, y = window[:, :-1], window[:, 1:]
    with torch.no_grad():
        a = torch.cat([teacher(x[:, :16]), *([teacher(x[:, 16:])] if block > 16 else [])], dim=1).log_softmax(-1)
        b = student(x).log_softmax(-1)
        wanted = 0.5 * token_losses(b, y).mean() + 0.5 * (a.exp() * (a - b)).sum(-1).mean()
    assert step.loss == pytest.approx(wanted.item(), abs=1e-5)


@pytest.mark.parametrize("near", [True, False])
def test_states_are_matched_near_the_old_model_alone(new, nano, data, monkeypatch, near):
    """What remains of them after a few steps is less with the matching than without, and far away it isn't done."""
    monkeypatch.setattr("modernize.recipe.NEAR", math.inf if near else -math.inf)
    teacher, missed, weights = load(nano), {}, []
    for weight in (0.0, 6.0):
        monkeypatch.setattr("modernize.objective.MATCH", weight)
        model = load(new)
        started, *_ = list(finetune(model, data, **QUICK, teacher=teacher, lr=3e-3, eval_every=12))
        assert started.match is near
        x = torch.from_numpy(load_corpus(data, tokenizer=lambda: None, vocab_size=61).val[:384].astype(np.int64))
        with torch.no_grad():
            old, states = (m.states(x.view(24, 16)).flatten(0, 1).double() for m in (teacher, model))
        left = states - old @ torch.linalg.lstsq(old, states).solution
        missed[weight] = (left.square().sum() / states.square().sum()).item()
        weights.append(model.to_state())
    if near:
        assert missed[6.0] < 0.9 * missed[0.0]
    else:  # the weights, since solving gives another last digit now and then
        assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_distill_at_its_ends(new, nano, data, weight):
    options = {**QUICK, "steps": 1, "seed": 3}
    with_teacher = next(
        e for e in finetune(load(new), data, **options, teacher=load(nano), distill=weight) if isinstance(e, Stepped)
    )
    alone = next(e for e in finetune(load(new), data, **options) if isinstance(e, Stepped))
    half = next(
        e for e in finetune(load(new), data, **options, teacher=load(nano), distill=0.5) if isinstance(e, Stepped)
    )
    kl = 2 * half.loss - alone.loss
    assert with_teacher.loss == pytest.approx({0.0: alone.loss, 1.0: kl}[weight], abs=1e-5)


def test_a_teacher_gives_old_loss_and_recovery(new, nano, data):
    end = events_of(new, data, teacher=load(nano))[-1]
    assert end.old == pytest.approx(modernize.evaluate(load(nano), data).loss, abs=1e-6)
    assert end.recovery == pytest.approx((end.before - end.best) / (end.before - end.old))
    assert events_of(new, data)[-1].recovery is None


def test_accumulated_batches_are_one_large_batch(new, data):
    """Eight windows at once, or two times four: the same tokens, the same gradient, the same weights."""

    def weights(**options):
        model = load(new)
        list(finetune(model, data, steps=1, device="cpu", optimizer="adamw", lr=7e-4, seed=1, **options))
        return model.to_state()

    first = load(new).to_state()
    whole, parts = weights(batch_size=8), weights(batch_size=4, grad_accum=2)
    moved = max((whole[n] - first[n]).abs().max() for n in whole)
    assert moved > 1e-4
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], rtol=0, atol=moved.item() / 10)


def test_accumulated_batches_weigh_what_they_hold(new, tmp_path):
    """Rows of very different lengths: a token counts the same in whichever batch it comes."""
    rows = np.full((30, 17), -1)
    for i, row in enumerate(rows):
        row[: 2 + i % 15] = np.arange(2 + i % 15)
    np.save(tmp_path / "rows.npy", rows)

    def gradient(**options):
        model = load(new)
        end = list(finetune(model, tmp_path / "rows.npy", steps=1, device="cpu", seed=1, lr=1e-9, **options))
        return model.wte.weight.grad, end[-1].tokens

    (whole, tokens), (parts, same) = gradient(batch_size=8), gradient(batch_size=2, grad_accum=4)
    assert tokens == same < 8 * 16
    torch.testing.assert_close(whole, parts, rtol=0, atol=1e-6 * whole.abs().max().item() + 1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["wte.weight", "h.0.attn.q.weight"])
def test_an_overflow_in_float16_costs_one_step_and_no_weight(new, data, monkeypatch, bad, name):
    """Whichever optimizer's gradient it is, neither steps, and the scaler scales down."""
    model = load(new)
    spoilt = []

    def spoil(gradient):
        if not spoilt:
            spoilt.append(True)
            gradient = gradient.clone()
            gradient.view(-1)[0] = bad
        return gradient

    model.get_parameter(name).register_hook(spoil)
    before = {n: t.clone() for n, t in model.to_state().items()}
    events = finetune(model, data, **QUICK, dtype="float16")
    next(e for e in events if isinstance(e, Stepped))
    assert all(torch.equal(before[n], t) for n, t in model.to_state().items())
    assert list(events)[-1].best < math.inf
    assert all(torch.isfinite(t).all() for t in model.to_state().values())


@pytest.mark.parametrize("at_once", [True, False])
def test_where_compiling_fails_training_goes_on(new, data, monkeypatch, at_once):
    def broken(model, **options):
        def forward(ids):
            raise RuntimeError("no compiler here")

        return forward(None) if at_once else forward

    monkeypatch.setattr(torch, "compile", broken)
    found = events_of(new, data, compile=True)
    assert [e.text for e in found if isinstance(e, Notice)] == [
        "torch.compile failed (RuntimeError: no compiler here); training goes on without it"
    ]
    assert found[-1].best < found[-1].before


def test_a_compiler_that_fails_where_parts_are_away_ends_the_run(new, data, monkeypatch):
    monkeypatch.setattr("modernize.run.is_cut", lambda model: True)
    monkeypatch.setattr(torch, "compile", lambda model, **options: None)
    with pytest.raises(OneProcess, match=r"torch\.compile failed") as met:
        events_of(new, data, compile=True)
    assert met.value.hint == "use --no-compile"


def test_a_batch_of_more_tokens_than_anybody_means_is_refused(new, data):
    with pytest.raises(UsageError, match="a batch of 100,000,000 windows has 1,600,000,000 tokens") as met:
        events_of(new, data, batch_size=100_000_000)
    assert met.value.hint == "use --batch-size 1048576"


def test_memory_that_runs_out_while_compiling_is_no_failure_of_the_compiler(new, data, monkeypatch):
    def greedy(model, **options):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    monkeypatch.setattr(torch, "compile", greedy)
    with pytest.raises(UsageError, match="not enough memory on cpu for 4 windows of 16 tokens"):
        events_of(new, data, compile=True)


@pytest.mark.parametrize("taught", [False, True])
def test_nothing_is_compiled_while_it_trains(new, nano, data, monkeypatch, taught):
    """One graph of fixed sizes for each length of windows, made before the first step."""
    import torch._dynamo

    graphs, made, real = [], [], torch.compile

    def counting(graph, inputs):
        graphs.append([i for i in inputs if isinstance(i, torch.SymInt)])
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda model, **options: real(model, backend=counting, **options))
    for event in finetune(load(new), data, **QUICK, compile=True, teacher=load(nano) if taught else None):
        assert not (isinstance(event, Notice) and "failed" in event.text), event
        if isinstance(event, Stepped):
            made.append(len(graphs))
    assert made[0] > 1
    assert set(made) == {made[0]}
    assert graphs == [[]] * len(graphs)


def test_rows_are_compiled_as_long_as_they_are(new, tmp_path, monkeypatch):
    seen = []

    def spy(model, **options):
        return lambda ids: seen.append(tuple(ids.shape)) or model(ids)

    np.save(tmp_path / "rows.npy", np.arange(440).reshape(40, 11) % 61)
    monkeypatch.setattr(torch, "compile", spy)
    events_of(new, tmp_path / "rows.npy", compile=True)
    assert set(seen) == {(4, 10)}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # of what the compiler imports
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")
def test_what_is_compiled_learns_the_same(new, data):
    compiled, plain = (events_of(new, data, compile=compile) for compile in (True, False))
    assert not [e.text for e in compiled if isinstance(e, Notice) and "failed" in e.text]
    losses = [[e.loss for e in events if isinstance(e, Stepped)] for events in (compiled, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


@pytest.mark.parametrize("taught", [False, True])
def test_compiling_is_tried_with_the_batch_that_is_trained(new, nano, data, monkeypatch, taught):
    seen = []

    def spy(model, **options):
        def forward(ids):
            seen.append((tuple(ids.shape), torch.is_inference_mode_enabled()))
            return model(ids)

        return forward

    monkeypatch.setattr(torch, "compile", spy)
    compiled, plain = (
        events_of(new, data, compile=compile, teacher=load(nano) if taught else None) for compile in (True, False)
    )
    assert set(seen) == {((4, 16), False), ((2, 32), False)}
    assert [e.loss for e in compiled if isinstance(e, Stepped)] == [e.loss for e in plain if isinstance(e, Stepped)]


def test_settings_and_options_are_not_mixed(new, data):
    with pytest.raises(TypeError, match="steps"):
        finetune(load(new), data, settings=Settings(), steps=5)


def test_a_start_that_is_no_number_is_beaten_by_any(new, data):
    model = load(new)
    run = finetune(model, data, **QUICK).gi_frame.f_locals["self"]
    assert run._keep_if_best(math.nan)
    assert run._keep_if_best(5.0)
    assert not run._keep_if_best(math.nan)
    assert run.best == 5.0


def test_a_loss_that_is_no_number_stops_before_the_update(new, data):
    model = load(new)
    with torch.no_grad():
        model.h[0].mlp.up.weight[0, 0] = math.inf
    before = {n: t.clone() for n, t in model.to_state().items()}
    with pytest.raises(TrainingStopped, match="step 1"):
        list(finetune(model, data, **QUICK))
    assert all(torch.equal(t, model.to_state()[n]) for n, t in before.items())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_reduced_precision_trains_too(new, data, dtype):
    end = events_of(new, data, dtype=dtype, steps=30, lr=5e-3)[-1]
    assert end.dtype == dtype
    assert end.best < end.before


def test_rows_with_padding_can_be_trained_on(new, tmp_path):
    rows = np.full((40, 17), -1)
    rows[:, :9] = np.arange(9)
    np.save(tmp_path / "rows.npy", rows)
    assert events_of(new, tmp_path / "rows.npy", steps=30, lr=1e-2)[-1].best < 3


def test_validation_can_be_limited_and_says_so(new, data):
    found = events_of(new, data, val_tokens=64)
    assert "first 64 tokens of 384" in found[0].text
    assert found[1].validation_tokens == 64


def test_the_schedule_rises_and_falls():
    factors = [schedule(step, 10, 2) for step in range(10)]
    assert factors[:3] == [0.5, 1.0, 1.0]
    assert factors == sorted(factors[:2]) + sorted(factors[2:], reverse=True)
    assert 0 < factors[-1] < 0.2


@pytest.mark.parametrize(("block", "batch"), [(6, 341), (128, 16), (256, 8), (1024, 8)])
def test_the_default_batch_is_about_two_thousand_tokens(block, batch):
    assert default_batch_size(block) == batch


@pytest.mark.parametrize("name", ["auto", "muon", "adamw"])
def test_every_parameter_has_one_optimizer(new, name):
    model = load(new)
    optimizers = build_optimizers(model, name, 1e-3, torch.device("cpu"), bfloat16=True)
    held = [id(p) for o in optimizers for g in o.param_groups for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    if name != "adamw":
        muon = {id(p) for g in optimizers[1].param_groups for p in g["params"]}
        assert muon == {id(p) for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("h.")}


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"distill": 1.5},
        {"lr": -1.0},
        {"lr": math.nan},
        {"grad_accum": 0},
        {"batch_size": -1},
        {"warmup": -1},
    ],
)
def test_settings_that_cannot_be(new, data, change):
    with pytest.raises(UsageError):
        finetune(load(new), data, settings=Settings(**change))


def test_who_learns_and_who_teaches(new, nano, data):
    with pytest.raises(UsageError, match="an old one teaches"):
        finetune(load(nano), data)
    with pytest.raises(UsageError, match="an old one teaches"):
        finetune(load(new), data, teacher=load(new))


def test_the_recipe_follows_what_is_found_before_the_first_step(new, nano, data, monkeypatch):
    monkeypatch.setattr("modernize.recipe.NEAR_WIDTH", 8)  # so that the width of these models counts
    tokens = len(load_corpus(data, tokenizer=lambda: None, vocab_size=61).train)
    enough = int(OFTEN * tokens / 64)
    for steps in (enough, enough + 1):
        started = next(finetune(load(new), data, **{**QUICK, "steps": steps}, teacher=load(nano)))
        chosen = choose_recipe(
            Settings(steps=steps, batch_size=4, block_size=16),
            loss=started.before, old=started.old, width=32, tokens=tokens,
        )  # fmt: skip
        assert (started.lr, started.distill, started.match) == (chosen.lr, chosen.distill, chosen.match)
        assert started.distill == (DISTILL if steps == enough else DISTILL_OFTEN)
    said = events_of(new, data, teacher=load(nano), steps=1, lr=1e-5, distill=0.1)[0]
    assert (said.lr, said.distill) == (1e-5, 0.1)
    assert events_of(new, data, steps=1)[0].distill == 0.0


@pytest.mark.parametrize("wrong", [{"optimizer": "sgd"}, {"device": "tpu"}, {"dtype": "fp16"}])
def test_words_that_are_none(new, data, wrong):
    with pytest.raises(UsageError, match=next(iter(wrong.values()))):
        finetune(load(new), data, **wrong)


def test_a_block_past_the_teacher_is_taught_as_far_as_he_reaches(new, nano, data):
    started = events_of(new, data, teacher=load(nano), block_size=20, steps=2)[0]
    assert (started.block_size, started.longest) == (20, 32)


def test_windows_are_as_long_as_data_has_them(new, data, tmp_path):
    assert events_of(new, data, steps=1)[0].longest == 32
    assert events_of(new, data, steps=1, target_context=40)[0].longest == 40
    ids = np.arange(600) % 61
    np.save(tmp_path / "short.npy", ids[:200])
    assert events_of(new, tmp_path / "short.npy", steps=1, block_size=4, target_context=128)[0].longest == 128
    with pytest.raises(BadData, match="no window of 256"):
        events_of(new, tmp_path / "short.npy", steps=1, block_size=4, target_context=256)
    with pytest.raises(UsageError, match="below the window of 16"):
        events_of(new, data, steps=1, target_context=8)
    np.save(tmp_path / "rows.npy", ids.reshape(40, 15))
    assert events_of(new, tmp_path / "rows.npy", steps=1)[0].longest == 16


def test_what_was_trained_on_longer_windows_says_so(new, data):
    model = load(new)
    assert model.config.trained_context == 16
    list(finetune(model, data, **QUICK, lr=10.0, eval_every=12))  # which makes it worse, so nothing is kept
    list(finetune(model, data, **QUICK, target_context=16))
    assert model.config.trained_context == 16
    list(finetune(model, data, **QUICK, eval_every=1))
    assert (model.config.trained_context, model.config.block_size) == (32, 16)
    list(finetune(model, data, **QUICK, target_context=16))
    assert model.config.trained_context == 32


def test_rows_are_as_long_as_they_are(new, tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(600).reshape(40, 15) % 61)
    model = load(new)
    list(finetune(model, tmp_path / "rows.npy", **QUICK, block_size=64, eval_every=1))
    assert model.config.trained_context == 16
    with pytest.raises(BadData, match="no window of 32") as error:
        finetune(model, tmp_path / "rows.npy", target_context=32)
    assert "rows are no longer" in error.value.hint


def test_what_is_refused_leaves_the_activation(new, tmp_path):
    np.save(tmp_path / "short.npy", np.arange(40) % 61)
    model = load(new)
    with pytest.raises(BadData):
        finetune(model, tmp_path / "short.npy", activation="silu")
    assert model.config.activation == "gelu"


def test_silu_is_put_in_the_place_of_gelu_and_trained(run, new, nano, data, tmp_path):
    out = tmp_path / "out.safetensors"
    options = ("--data", data, "--steps", 20, "--batch-size", 4, "--teacher", nano, "--activation", "silu", "-o", out)
    found = run("finetune", new, *options, "--json")
    assert found.code == 0, found.err
    model, before = load(out), load(new)
    assert (before.config.activation, model.config.activation) == ("gelu", "silu")
    assert model.h[0].mlp.activation == "silu"
    assert found.json["loss"]["best"] < found.json["loss"]["before"]
    whole = modernize.export(out, tmp_path / "folder", to="llama")
    assert whole.difference is None


def test_a_teacher_of_another_vocabulary_is_refused(new, tmp_path, data):
    other = load(tiny.save_nano(tmp_path / "o.pt", tiny.spec(vocab_size=40)))
    with pytest.raises(UsageError, match="40 tokens and the model 61"):
        finetune(load(new), data, teacher=other)


def test_data_without_a_training_part_is_refused(new, data):
    with pytest.raises(BadData, match="no training part"):
        finetune(load(new), data / "val.bin")


# ------------------------------------------------------------------------------------------ the command


def test_the_command_writes_what_it_says(run, new, nano, data, tmp_path):
    log, plot = tmp_path / "log.jsonl", tmp_path / "p.png"
    result = run(
        "finetune", new, "--data", data, "--teacher", nano, "--steps", 10, "--batch-size", 4, "--device", "cpu",
        "--log", log, "--plot", plot, "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    report = result.json
    assert set(report) == {
        "schema", "input", "output", "steps", "tokens", "loss", "recovery", "tokens_per_second", "device", "dtype",
        "stopped",
    }  # fmt: skip
    assert set(report["loss"]) == {"before", "after", "best", "old"}
    assert report["stopped"] == "steps"
    out = tmp_path / "new-finetuned.safetensors"
    assert report["output"] == str(out)
    assert modernize.evaluate(load(out), data).loss == pytest.approx(report["loss"]["best"], abs=1e-5)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert next(r["event"] for r in rows if r["event"] != "notice") == "started"
    assert rows[-1]["event"] == "finished"
    assert plot.read_bytes().startswith(b"\x89PNG")
    with safe_open(out, framework="pt") as file:
        facts = json.loads(file.metadata()["modernize"])
    assert [run["steps"] for run in facts["finetunes"]] == [10]
    assert facts["init"] == "fold"
    assert "10/10" in result.err


def test_the_dtype_of_the_file_is_kept(run, nano, data, tmp_path):
    new = tmp_path / "new.safetensors"
    run("convert", nano, new, "--init", "fold", "--dtype", "bfloat16")
    assert run("finetune", new, "--data", data, "--steps", 2, "-o", tmp_path / "out.safetensors").code == 0
    assert {p.dtype for p in load(tmp_path / "out.safetensors").parameters()} == {torch.bfloat16}


def test_an_existing_output_is_refused_before_training(run, new, data, tmp_path):
    (tmp_path / "new-finetuned.safetensors").write_bytes(b"precious")
    result = run("finetune", new, "--data", data, "--steps", 2)
    assert (result.code, "exists already" in result.err) == (4, True)


@pytest.mark.parametrize("which", ["output", "log"])
def test_the_inputs_are_never_outputs(run, new, nano, data, which):
    option = {"output": "-o", "log": "--log"}[which]
    for source in (new, nano):
        result = run("finetune", new, "--data", data, "--teacher", nano, "--steps", 1, option, source, "--force")
        assert result.code == 4


@pytest.mark.parametrize("option", ["--log", "--plot", "-o"])
@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
def test_the_data_is_never_an_output(run, new, data, option, name):
    before = (data / name).read_bytes()
    result = run("finetune", new, "--data", data, "--steps", 1, option, data / name, "--force")
    assert (result.code, (data / name).read_bytes()) == (4, before)


def test_a_teachers_folder_is_never_an_output(run, new, data, tmp_path):
    from test_checkpoint import hf_folder

    folder = hf_folder(tmp_path / "hf")
    weights = folder / "model.safetensors"
    result = run("finetune", new, "--data", data, "--teacher", folder, "--steps", 1, "-o", weights, "--force")
    assert result.code == 4


@pytest.mark.parametrize("named", [True, False])
def test_a_tokenizer_is_never_an_output(run, new, tmp_path, named):
    """Whether the user names its folder or it is found beside the checkpoint."""
    home = tmp_path / "home"
    home.mkdir()
    meta = (home if named else tmp_path) / "meta.pkl"
    meta.write_bytes(b"precious")
    option = ["--tokenizer", home] if named else []
    result = run("finetune", new, "--data", "pydoc", "--steps", 1, "--log", meta, "--force", *option)
    assert (result.code, meta.read_bytes()) == (4, b"precious")


def test_two_links_to_one_file_are_one_output(run, new, data, tmp_path):
    out, link = tmp_path / "out.safetensors", tmp_path / "link"
    out.write_bytes(b"old")
    link.hardlink_to(out)
    result = run("finetune", new, "--data", data, "--steps", 1, "-o", out, "--log", link, "--force")
    assert (result.code, out.read_bytes()) == (2, b"old")


def test_two_outputs_are_two_files(run, new, data, tmp_path):
    result = run("finetune", new, "--data", data, "--steps", 1, "--log", tmp_path / "x", "--plot", tmp_path / "x")
    assert (result.code, "same file" in result.err) == (2, True)


def test_a_plot_is_a_png(run, new, data, tmp_path):
    result = run("finetune", new, "--data", data, "--steps", 1, "--plot", tmp_path / "curves.pdf")
    assert (result.code, "not named .png" in result.err, "curves.png" in result.err) == (2, True, True)


def test_a_log_that_cannot_be_written_is_exit_four(run, new, data, tmp_path):
    (tmp_path / "sealed").mkdir(mode=0o555)
    log = "/proc/x.jsonl"
    result = run("finetune", new, "--data", data, "--steps", 1, "--log", log)
    assert (result.code, log in result.err) == (4, True)


def test_every_finetune_is_remembered(run, new, data, tmp_path):
    for source, target in ((new, "a"), (tmp_path / "a.safetensors", "b")):
        run("finetune", source, "--data", data, "--steps", 3, "-o", tmp_path / f"{target}.safetensors")
    shown = run("inspect", tmp_path / "b.safetensors").out
    assert shown.count("fine-tuned 3 steps") == 2


def test_an_old_model_is_not_finetuned_and_a_new_one_is_no_teacher(run, new, nano, data):
    result = run("finetune", nano, "--data", data)
    assert (result.code, "modernize convert" in result.err) == (2, True)
    result = run("finetune", new, "--data", data, "--teacher", new)
    assert (result.code, "is a modern model" in result.err) == (2, True)


def test_a_stop_on_a_bad_number_is_exit_five(run, tmp_path, data):
    spec = tiny.spec()
    state = tiny.jittered(spec)
    state["h.0.mlp.up.weight"] *= 1e30
    state["h.0.mlp.down.weight"] *= 1e30
    new = tmp_path / "new.safetensors"
    run("convert", tiny.save_nano(tmp_path / "n.pt", spec, state=state), new, "--init", "fold")
    result = run("finetune", new, "--data", data, "--steps", 2, "--device", "cpu")
    assert (result.code, "not a finite number" in result.err) == (5, True)
    assert not (tmp_path / "new-finetuned.safetensors").exists()


def test_auto_is_a_device_that_is_there(new, data):
    assert events_of(new, data, device="auto", steps=1)[0].device == choose_device("auto").type


def test_text_of_the_teacher_is_data_too(run, new, nano, tmp_path):
    out = tmp_path / "out.safetensors"
    options = ("--data", "self", "--steps", 40, "--batch-size", 8, "--lr", 1e-2, "--json", "-o", out)
    refused = run("finetune", new, *options)
    assert (refused.code, "--teacher OLD" in refused.err) == (2, True)
    result = run("finetune", new, *options, "--teacher", nano)
    assert result.code == 0, result.err
    loss = result.json["loss"]
    assert loss["old"] < loss["best"] < loss["before"] - 0.2


def test_what_a_teacher_writes_depends_on_the_seed_alone(nano):
    one, same, other = (self_corpus(load(nano), context=16, tokens=100, seed=seed) for seed in (3, 3, 4))
    assert one.train.shape == (7, 17)
    assert one.val.shape == (1, 17)
    assert np.array_equal(one.train, same.train)
    assert not np.array_equal(one.train, other.train)
    told = []
    found = self_corpus(load(nano), context=5, tokens=100, seed=3, progress=lambda *so_far: told.append(so_far))
    assert found.train.shape == (20, 6)
    assert told[-1] == (110, 110)
    assert told == sorted(told)


def test_a_teacher_from_another_file_is_doubted(run, new, nano, data, tmp_path):
    other = tiny.save_nano(tmp_path / "other.pt", tiny.spec(n_layer=3))
    options = ("--data", data, "--steps", 1, "--device", "cpu", "--force")
    assert "is not the file" not in run("finetune", new, "--teacher", nano, *options).err
    found = run("finetune", new, "--teacher", other, *options)
    assert found.code == 0
    assert f"warning: {other} is not the file that the modern model was converted from" in found.err


def test_an_activation_that_contradicts_the_conversion_is_doubted(run, new, nano, data):
    options = ("--data", data, "--teacher", nano, "--steps", 1, "--device", "cpu", "--force")
    kept = load(new).config.activation
    other = "relu" if kept != "relu" else "gelu"
    assert "was converted with" not in run("finetune", new, *options, "--activation", kept).err
    found = run("finetune", new, *options, "--activation", other)
    assert f"warning: --activation {other}, and {nano} was converted with {kept}" in found.err
