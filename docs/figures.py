"""Draw the figures of docs/how-it-works.md from the example checkpoint: `python docs/figures.py` (minutes; matplotlib).

positions.png  scores by distance of one head, old and new, within the old context and past it
moves.png      the loss after each of the moves
contexts.png   losses by position and by context, of every way to convert
"""

import io
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import modernize
from modernize.calibration import EFFORTS, old_model, text_from_self
from modernize.checkpoint import open_checkpoint
from modernize.data import Corpus
from modernize.measure import corpus_for
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.progress import unseen
from modernize.recognise import Facts, recognise
from modernize.rewrite import attention_start, halves, local, positions
from modernize.rewrite import block as blocks
from modernize.rewrite.apply import folded, rewrite
from modernize.rewrite.plan import Plan
from modernize.rewrite.retrofit import retrofit
from modernize.rewrite.work import Effort, Work, tables_of
from modernize.spec import GPTSpec, State

DOCS = Path(__file__).parent
EXAMPLE = DOCS.parent / "examples" / "pydoc-gpt.pt"
PAIRS, RIDGE = 16, 1e-4  # of the position fit that is drawn
HEAD = (0, 1)  # layer and head that are drawn
REACH = 4  # contexts
COLOURS = {"old": "0.35", "reset": "#c44e52", "fold": "#dd8452", "converted": "#4c72b0", "fine-tuned": "#55a868"}


class Subject:
    """The example: its facts, its weights, text that it writes, and text to judge by."""

    def __init__(self) -> None:
        found = recognise(open_checkpoint(EXAMPLE), Facts(activation="gelu"))
        self.spec: GPTSpec = found.spec
        self.state: State = found.state()
        self.old: OldGPT = old_model(self.spec, self.state, torch.device("cpu"))
        self.text = text_from_self(self.old, seed=0, progress=unseen)
        self.corpus: Corpus = corpus_for(self.old, "pydoc", None)
        self.folded = folded(self.state, self.spec, Plan())

    def work(self, effort: Effort = EFFORTS["quick"], kept: tuple[str, ...] = ()) -> Work:
        """What a conversion works on."""
        tables, far = tables_of(self.spec.block_size, self.spec.head_dim, 10000.0, torch.device("cpu"))
        return Work(spec=self.spec, text=self.text, tables=tables, far=far, effort=effort, kept=kept, seed=0)

    def plain(self, **plan: str) -> ModernGPT:
        """`fold` or `reset`."""
        made = rewrite(self.state, self.spec, Plan(**plan))
        return ModernGPT.from_state(made.config, {name: t.float() for name, t in made.state.items()})

    def fitted(self, effort: Effort = EFFORTS["quick"], **plan: str) -> ModernGPT:
        """A retrofit."""
        config = Plan(**plan).config(self.spec)
        made = retrofit(self.folded, self.work(effort, config.biases), tied=True, progress=lambda *_: None)
        return ModernGPT.from_state(config, {name: made.state[name].float() for name in config.shapes()})

    def loss(self, model: ModernGPT | OldGPT, context: int | None = None) -> float:
        """On the validation part of the language reference."""
        return modernize.evaluate(model, self.corpus, context=context or self.spec.block_size).loss


# ------------------------------------------------------------------------------------------ positions


def course(subject: Subject, head: int) -> tuple[Tensor, Tensor]:
    """t(Δ) of a head of the first block, (T,), and what RoPE makes of it, (REACH · T,)."""
    spec, work = subject.spec, subject.work()
    ids, n = subject.text.ids, torch.arange(16)
    wte, wpe = (subject.folded[f"{name}.weight"].float() for name in ("wte", "wpe"))
    block = {name: t.float() for name, t in blocks.block_of(subject.folded, 0).items()}
    z_old = blocks.normed(wte[ids] + wpe, spec.norm_eps)
    z = blocks.normed(wte[ids], spec.norm_eps)
    basis = {name: block[name] for name in ("q.weight", "q.bias", "k.weight")}
    seen = local.OldAttention.of(block, z_old, work)
    p, missing = attention_start._missing(basis, seen, z, n, work)
    normal = positions.normal_equations(p, missing, *work.tables)
    amplitudes = positions.fit_pairs(normal, PAIRS, RIDGE)[head]
    distances = torch.arange(REACH * spec.block_size)
    theta = 10000.0 ** (-torch.arange(0, 2 * PAIRS, 2) / spec.head_dim)
    angles = torch.outer(distances, theta)
    fit = (torch.cat([angles.cos(), angles.sin()], dim=1).double() @ amplitudes).float()
    weight = positions.sum_by_distance(p.sum(0))[head]
    inside = fit[: spec.block_size]
    centred = p * (missing - (p * missing).sum(-1, keepdim=True))
    t = positions.sum_by_distance(centred.sum(0))[head] / weight
    return t, fit - (weight * (inside - t)).sum() / weight.sum()


def log_attention(q: Tensor, k: Tensor, context: int) -> Tensor:
    """Mean log-attention at each distance (T,), where every query sees the last `context` keys: q, k (B, T, head_dim).

    Queries that have fewer keys are left out.
    """
    scores = blocks.scores(q, k)  # (B, T, T)
    length = scores.shape[-1]
    places = torch.arange(length)
    distance = places[:, None] - places
    near = scores.masked_fill((distance < 0) | (distance >= context), -torch.inf)
    logs = scores - near.logsumexp(-1, keepdim=True)
    found = torch.empty(length)
    for d in range(length):
        found[d] = logs[:, (distance == d) & (places[:, None] >= min(context, length) // 2)].mean()
    return found


def of_model(model: ModernGPT | OldGPT, ids: Tensor, layer: int, head: int, context: int) -> Tensor:
    """The same of one head of a model, on ids (B, T)."""
    x = model.wte(ids)
    tables = None
    if isinstance(model, OldGPT):
        x = x + model.wpe.weight[: ids.shape[1]]
    else:
        tables = model.rope(ids.shape[1], ids.device)
    norm = "ln_1" if isinstance(model, OldGPT) else "norm_1"
    for block in model.h[:layer]:
        x = block(x, *tables) if tables else block(x)
    z = getattr(model.h[layer], norm)(x)
    state = {f"{part}.{kind}": t for part in "qk" for kind, t in getattr(model.h[layer].attn, part).named_parameters()}
    q, k = (blocks.heads(state, part, z, len_heads(model), tables)[:, head] for part in "qk")
    return log_attention(q, k, context)


def len_heads(model: ModernGPT | OldGPT) -> int:
    """How many heads it has."""
    return (model.spec if isinstance(model, OldGPT) else model.config).n_head


def draw_positions(subject: Subject, converted: ModernGPT) -> None:
    """positions.png."""
    layer, head = HEAD
    context = subject.spec.block_size
    with mock.patch.object(local, "FAR_WEIGHT", 0.0):
        loose = subject.fitted()
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    t, fit = course(subject, head)
    left.plot(t, color=COLOURS["old"], lw=2.5, label="t(Δ), what the old scores have more")
    left.plot(fit[:context], color=COLOURS["converted"], ls="--", label=f"{PAIRS} pairs of RoPE, fitted")
    left.set(xlabel="distance Δ", ylabel="score", title="Positions become turns")
    left.legend(frameon=False)
    with torch.inference_mode():
        ids = torch.from_numpy(np.array(subject.corpus.val[: 24 * REACH * context])).long()
        short, long = ids.view(-1, context), ids.view(-1, REACH * context)
        right.plot(of_model(subject.old, short, layer, head, context), color=COLOURS["old"], lw=2.5, label="old")
        for model, colour, label in (
            (loose, COLOURS["reset"], "fitted within the old context alone"),
            (converted, COLOURS["converted"], "and held down past it, as it is"),
        ):
            right.plot(of_model(model, long, layer, head, context), color=colour, lw=1, label=label)
    right.axvline(context, color="0.7", lw=0.8, ls=":")
    right.set(xlabel="distance Δ", ylabel="mean log-attention", title="Attention by distance, past the old context")
    right.legend(frameon=False)
    save(figure, "positions.png")


# ------------------------------------------------------------------------------------------ moves


def chain(subject: Subject, converted: ModernGPT, tuned: ModernGPT) -> list[tuple[str, float]]:
    """Each move, and the loss after it."""
    quick = EFFORTS["quick"]
    still = replace(quick, attention_steps=0, output_steps=0)
    never = mock.patch.object(halves, "refit", lambda weight, *_: weight)
    no_pairs = mock.patch.object(attention_start, "RIDGES", ())
    blunt = mock.patch.object(halves, "direction_of_one", lambda within, mean: torch.zeros_like(mean.double()))
    rows = [("the old model", subject.loss(subject.old))]
    exact = replace(subject.spec, biases=("q", "k", "o", "up", "down", "head"))
    state = {name: t.float() for name, t in subject.folded.items()}
    rows.append(("exact moves: gains, shifts, means", subject.loss(OldGPT.from_state(exact, state))))
    rows.append(("RoPE for positions, biases kept", subject.loss(subject.plain(init="fold", bias="keep"))))
    with never, no_pairs:
        rows.append(("heads' bases turned", subject.loss(subject.fitted(still, bias="keep"))))
    with never:
        rows.append(("positions fitted", subject.loss(subject.fitted(still, bias="keep"))))
        rows.append(("attention fitted", subject.loss(subject.fitted(replace(quick, output_steps=0), bias="keep"))))
        with blunt:
            rows.append(("biases dropped", subject.loss(subject.fitted(replace(quick, output_steps=0)))))
        rows.append(("or absorbed", subject.loss(subject.fitted(replace(quick, output_steps=0)))))
    rows.append(("what writes is refitted", subject.loss(subject.fitted(replace(quick, output_steps=0)))))
    rows.append(("output fitted: converted", subject.loss(converted)))
    rows.append(("100 steps of fine-tuning", subject.loss(tuned)))
    return rows


def draw_moves(rows: Sequence[tuple[str, float]]) -> None:
    """moves.png."""
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axes = figure.subplots()
    names, losses = zip(*rows, strict=True)
    colours = [COLOURS["old"], *[COLOURS["converted"]] * (len(rows) - 2), COLOURS["fine-tuned"]]
    bars = axes.barh(range(len(rows)), losses, color=colours)
    axes.bar_label(bars, [f"{loss:.3f}" for loss in losses], padding=3)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.axvline(losses[0], color=COLOURS["old"], lw=0.8, ls=":")
    axes.set(xlabel="validation loss, nats", xlim=(0.8, max(losses) * 1.1))
    save(figure, "moves.png")


# ------------------------------------------------------------------------------------------ contexts


def draw_contexts(subject: Subject, models: dict[str, ModernGPT]) -> None:
    """contexts.png."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    context = subject.spec.block_size
    multiples = [context, 2 * context, 4 * context]
    for number, (name, model) in enumerate(models.items()):
        found = modernize.compare(subject.old, model, subject.corpus)
        middles = [(row.start + row.end - 1) / 2 for row in found.by_position]
        if not number:
            left.plot(middles, [row.old for row in found.by_position], "s-", color=COLOURS["old"], label="old")
        left.plot(middles, [row.new for row in found.by_position], "o-", color=COLOURS[name], label=name)
        put(right, number + 1, [subject.loss(model, length) for length in multiples], name)
    put(right, 0, [subject.loss(subject.old)], "old")
    left.set(xlabel="position in the window", ylabel="validation loss, nats", ylim=(1, None))
    right.set_xticks(range(3), [f"{length} ({length // context}×)" for length in multiples])
    right.set(xlabel="context", ylim=(1, None))
    right.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
    right.set_ylim(1, right.get_ylim()[1] * 1.25)
    save(figure, "contexts.png")


def put(axes: Axes, number: int, losses: Sequence[float], name: str) -> None:
    """One model's bars."""
    places = [place + 0.17 * (number - 2) for place in range(len(losses))]
    axes.bar(places, losses, width=0.15, color=COLOURS[name], label=name)


def save(figure: Figure, name: str) -> None:
    """As a small PNG, of few colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    Image.open(drawn).convert("RGB").quantize(48).save(DOCS / name, optimize=True)


def main() -> None:
    """Convert, fine-tune, draw."""
    subject = Subject()
    converted = subject.fitted()
    draw_positions(subject, converted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.safetensors"
        modernize.convert(EXAMPLE, path)
        tuned = modernize.load(path)
    for _ in modernize.finetune(tuned, "pydoc", steps=100, teacher=subject.old):
        pass
    assert isinstance(tuned, ModernGPT)
    draw_moves(chain(subject, converted, tuned))
    plain = {"reset": subject.plain(init="reset"), "fold": subject.plain(init="fold")}
    draw_contexts(subject, {**plain, "converted": converted, "fine-tuned": tuned})


if __name__ == "__main__":
    main()
