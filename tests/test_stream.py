"""Conversion from the file, piece by piece: the same bytes as of the whole State, read once, and nothing half done."""

import itertools
import os
import threading

import pytest
import tiny
import torch
from test_fold import VARIANTS

from modernize.ahead import ahead
from modernize.checkpoint import Checkpoint, open_checkpoint
from modernize.conversion import convert
from modernize.errors import BadTensors, UnknownLayout, UnreadableFile
from modernize.facts import Facts
from modernize.masks import check_masks
from modernize.recognise import is_finite, recognise
from modernize.rewrite import pieces
from modernize.rewrite.apply import rewrite
from modernize.rewrite.plan import Plan
from modernize.rewrite.stream import stream
from modernize.spec import NORMS
from modernize.write import cast, model_metadata, write_tensors

PLANS = {
    "fold": Plan(init="fold"),
    "keep": Plan(init="fold", bias="keep"),
    "untie": Plan(init="fold", untie=True),
    "untie, keep": Plan(init="fold", bias="keep", untie=True),
    "reset": Plan(init="reset"),
    "reset, untie": Plan(init="reset", untie=True),
}
# matrices by rows, by columns, a tensor for each head, both tables in one
ORDERS = ("nanogpt", "gpt2", "transformer-lens", "lecture", "biogpt")
WIDE = {
    "n_embd": 96,
    "n_inner": 200,
    "vocab_size": 150,
    "block_size": 8,
}  # some blocks and a part


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of 64 rows or columns, so that small matrices are cut as well."""
    monkeypatch.setattr(pieces, "NUMBERS", 1)


def saved(path, spec, name="nanogpt", **change):
    """A recognised file, and the State that is in it."""
    dialect = tiny.dialect(name)
    if True not in dialect.tied:
        spec = tiny.replace(spec, tied=False)
    state = tiny.fitted(tiny.jittered(spec, dtype=torch.float64), spec, dialect) | change
    torch.save(tiny.as_dialect(state, spec, dialect), path)
    facts = Facts(
        dialect=name,
        n_head=spec.n_head,
        activation=spec.activation,
        attn_scale=spec.attn_scale,
        norm_eps=None if name == "biogpt" else spec.norm_eps,
    )
    return recognise(open_checkpoint(path), facts), facts


def put_together(found, plan):
    """What is streamed, as a State."""
    parts, state = stream(found, plan, lambda state: state), {}
    for name, shape in plan.config(found.spec).shapes().items():
        rows = [next(parts)]
        while sum(map(len, rows)) < shape[0]:
            rows.append(next(parts))
        state[name] = torch.cat(rows)
    assert next(parts, None) is None
    return state


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("change", [*VARIANTS.values(), {"tied": False}], ids=[*VARIANTS, "untied"])
def test_pieces_put_together_are_the_whole(tmp_path, blocks, change, plan):
    found, _ = saved(tmp_path / "n.pt", tiny.spec(**{**WIDE, **change}))
    whole, made = rewrite(found.state(), found.spec, plan).state, put_together(found, plan)
    assert list(made) == list(whole)
    for name, tensor in whole.items():
        if name.endswith("bias"):  # a product with some rows may add up in another order
            torch.testing.assert_close(made[name], tensor, rtol=0, atol=1e-12)
        else:
            assert torch.equal(made[name], tensor), name


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", ORDERS)
def test_however_the_file_holds_them(tmp_path, blocks, name, plan):
    biases = (*tiny.ALL_BIASES, *(["head"] if name in ("transformer-lens", "lecture") else []))
    found, _ = saved(tmp_path / "n.pt", tiny.spec(biases=biases, **WIDE), name)
    whole, made = rewrite(found.state(), found.spec, plan).state, put_together(found, plan)
    for part, tensor in whole.items():
        torch.testing.assert_close(made[part], tensor, rtol=0, atol=1e-12 if part.endswith("bias") else 0)


@pytest.mark.parametrize("dtype", ["keep", "bfloat16"])
@pytest.mark.parametrize("bias", ["drop", "keep"])
def test_the_file_has_the_bytes_that_the_whole_would_have(tmp_path, bias, dtype):
    spec = tiny.spec(vocab_size=4001)  # more than a block
    state = tiny.jittered(spec)
    path = tiny.save_nano(tmp_path / "n.pt", spec, state=state)
    facts = Facts(activation="gelu")
    report = convert(path, tmp_path / "new.safetensors", init="fold", bias=bias, tie="tie", dtype=dtype, facts=facts)
    found, plan = recognise(open_checkpoint(path), facts), Plan(init="fold", bias=bias)
    made = rewrite(state, spec, plan)
    metadata = model_metadata(
        made.config,
        sha256=report.sha256,
        dialect="nanogpt",
        facts=found.facts(facts),
        init="fold",
        vocabulary={},
    )
    wanted = torch.float32 if dtype == "keep" else torch.bfloat16
    write_tensors(tmp_path / "whole.safetensors", cast(made.state, wanted, origin=str), metadata)
    assert (tmp_path / "new.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


@pytest.mark.parametrize("options", [{}, {"bias": "keep"}, {"init": "reset"}, {"dry_run": True}], ids=str)
def test_a_value_that_is_not_finite_is_found_wherever_it_is(tmp_path, options):
    """Also in what is dropped."""
    spec = tiny.spec(n_layer=1, tied=False, biases=(*NORMS, "q", "k", "v", "o", "up", "down", "head"))
    for name, tensor in tiny.jittered(spec, dtype=torch.float64).items():
        broken = tensor.clone()
        broken.view(-1)[-1] = torch.nan
        found, facts = saved(tmp_path / "n.pt", spec, **{name: broken})
        (source,) = found.sources_of(name)
        with pytest.raises(BadTensors, match=f"{source} holds values that are not finite"):
            convert(tmp_path / "n.pt", tmp_path / "new.safetensors", facts=facts, **{"init": "fold", **options})
    assert [p.name for p in tmp_path.iterdir()] == ["n.pt"]


def test_large_values_are_finite():
    assert is_finite(torch.full((10,), 3e38))
    assert is_finite(torch.full((100,), 6e4, dtype=torch.float16))
    assert is_finite(torch.empty(0))
    assert not is_finite(torch.tensor([1.0, torch.inf, -torch.inf]))
    assert not is_finite(torch.tensor([1.0, torch.nan]))


def test_tables_are_read_in_blocks_and_matrices_once(tmp_path, monkeypatch, blocks):
    spec = tiny.spec(tied=False, **WIDE)
    _, facts = saved(tmp_path / "n.pt", spec)
    read, rows = Checkpoint.read, Checkpoint.rows
    whole, parts = [], []
    monkeypatch.setattr(Checkpoint, "read", lambda self, name: whole.append(name) or read(self, name))

    def some(self, name, start, stop):
        parts.append((name, start, stop))
        return rows(self, name, start, stop)

    monkeypatch.setattr(Checkpoint, "rows", some)
    convert(tmp_path / "n.pt", tmp_path / "new.safetensors", init="fold", facts=facts)
    for name in ("transformer.wte.weight", "lm_head.weight"):
        assert name not in whole
        assert [part for part in parts if part[0] == name] == [(name, 0, 64), (name, 64, 128), (name, 128, 150)]
    fused = [name for name in whole if name.endswith(("c_attn.weight", "c_proj.weight"))]
    assert len(fused) == len(set(fused)) == 6


# --------------------------------------------------------------------------- what goes wrong leaves nothing behind


def refused(run, tmp_path, nano, code, said, *options):
    result = run("convert", nano, tmp_path / "new.safetensors", "--init", "fold", *options)
    assert (result.code, said in result.err) == (code, True), result.err
    assert [p.name for p in tmp_path.iterdir()] == ["nano.pt"]


def test_damage_explains_more_than_what_it_led_to(run, nano, tmp_path):
    raw = bytearray(nano.read_bytes())
    gain = tiny.jittered(tiny.spec())["h.1.ln_2.weight"].numpy().tobytes()
    at = raw.index(gain)
    raw[at : at + 4] = b"\xff" * 4  # not a number
    nano.write_bytes(raw)
    refused(run, tmp_path, nano, 3, "is damaged")
    refused(run, tmp_path, nano, 3, "is damaged", "--dry-run")


def test_a_hash_that_fails_at_the_end(run, nano, tmp_path, monkeypatch):
    def broken(self):
        raise UnreadableFile("the disk is gone", hint="")

    monkeypatch.setattr(Checkpoint, "sha256", broken)
    refused(run, tmp_path, nano, 3, "the disk is gone")


def test_a_file_that_changes_while_it_is_read(run, nano, tmp_path, monkeypatch):
    def changed(*args):
        os.utime(nano, ns=(1, 1))

    monkeypatch.setattr("modernize.conversion.check_masks", changed)
    refused(run, tmp_path, nano, 3, "changed while it was read")


def test_a_file_that_changes_when_all_is_read(nano, tmp_path, monkeypatch):
    """As a training that goes on may do while a retrofit fits blocks."""
    import modernize.conversion

    loss = modernize.conversion.old_loss
    monkeypatch.setattr(modernize.conversion, "old_loss", lambda *args: os.utime(nano, ns=(1, 1)) or loss(*args))
    assert convert(nano, tmp_path / "new.safetensors").written


def test_an_error_of_the_machine_while_it_reads_is_the_inputs(run, nano, tmp_path, monkeypatch):
    def broken(*args):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Checkpoint, "rows", broken)
    refused(run, tmp_path, nano, 3, f"{nano} cannot be read: Input/output error")


def test_an_interrupt_waits_for_nobody(run, nano, tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    hashing = threading.Event()
    monkeypatch.setattr(Checkpoint, "sha256", lambda self: str(hashing.wait()))
    monkeypatch.setattr(Checkpoint, "rows", interrupted)
    try:
        refused(run, tmp_path, nano, 130, "")
    finally:
        hashing.set()


def test_threads_are_as_before(nano, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    convert(nano, tmp_path / "new.safetensors", init="fold")
    assert asked[0] == 1
    assert asked[-1] == 7


# ------------------------------------------------------------------------------------------ and beside it


def test_ahead_gives_the_same_and_raises_what_came_up_after_it():
    def items():
        yield from range(20)
        raise ValueError("the end")

    found = []
    with pytest.raises(ValueError, match="the end"):
        for item in ahead(items()):
            found.append(item)
    assert found == list(range(20))
    assert list(ahead(iter(()))) == []


def test_who_stops_early_leaves_no_thread_behind():
    before = set(threading.enumerate())
    items = ahead(itertools.count(), waiting=2)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    (thread,) = set(threading.enumerate()) - before
    items.close()
    thread.join(5)
    assert not thread.is_alive()


def test_people_who_inspect_do_not_wait_for_a_hash(run, nano, monkeypatch):
    hashed = []
    monkeypatch.setattr(Checkpoint, "sha256", lambda self: hashed.append(self) or "0" * 64)
    assert run("inspect", nano).code == 0
    assert not hashed
    assert run("inspect", nano, "--json").json["sha256"] == "0" * 64


def test_one_mask_of_another_kind_among_equal_ones(tmp_path):
    keys = tiny.as_dialect(tiny.jittered(tiny.spec(n_layer=3)), tiny.spec(n_layer=3), tiny.dialect("mingpt-2020"))
    masks = {f"blocks.{i}.attn.mask": torch.ones(1, 1, 16, 16).tril() for i in range(3)}
    for odd, which in ((None, None), (torch.ones(1, 1, 16, 16), 2)):
        if which is not None:
            masks[f"blocks.{which}.attn.mask"] = odd
        torch.save(keys | masks, tmp_path / "m.pt")
        found = recognise(open_checkpoint(tmp_path / "m.pt"), Facts(n_head=4))
        if which is None:
            check_masks(found.checkpoint, found.steps)
        else:
            with pytest.raises(UnknownLayout, match=r"blocks\.2\.attn\.mask is no causal mask"):
                check_masks(found.checkpoint, found.steps)
