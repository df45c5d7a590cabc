"""Try: what neither a file nor its user says is settled by the loss on DATA under each possible reading.

A wrong attention scale or number of heads costs tenths of a nat, a norm in the wrong place everything, so the lowest
loss tells. Measured on a trained model, ReLU differs from a GELU by 0.1 nats, but the two GELUs differ by 1e-5, either
way: what differs by so little is not settled, and the dialect's own value stays, with its warning. Models with norms
behind or with RMSNorm are tried too, though they can't be converted. The order of query, key and value in one tensor is
tried last, where only spellings tell it: another than the usual one is taken where it predicts clearly better.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from modernize.checkpoint import Checkpoint
from modernize.data import IGNORED, Corpus, Windows
from modernize.dialects.ops import SPLIT3, TRANSPOSE_SPLIT3
from modernize.errors import UnknownLayout
from modernize.facts import CHOICES, QKV, Facts, open_facts, own_values
from modernize.measure import mean_loss
from modernize.old import OldBlock, OldGPT
from modernize.progress import Progress, silent
from modernize.recognise import Recognised, covers_of, recognise
from modernize.spec import NORMS, GPTSpec, State

FIRST_TOKENS = 512  # of the validation part, for every reading
TOKENS = 4096  # for those that are left
PROMISING = 0.3  # nats above the lowest loss on the first tokens, up to which a reading is left
CLEARLY = 0.05  # nats by which a model that can't be converted has to predict better, so that this is refused for it
NOISE = 1e-3  # nats that settle nothing
ORDERS = tuple(",".join(order) for order in itertools.permutations("qkv"))
MOST_HEADS = 64
SMALLEST_HEAD = 4


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One reading: values of the facts that are open, and the loss in nats."""

    facts: dict[str, Any]
    loss: float

    @property
    def norm(self) -> str:
        """Which norms it has, and where: `pre` where nothing is open about them."""
        return str(self.facts.get("norm", "pre"))

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {**self.facts, "loss": self.loss}


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What the user said and the trial settled, the reading that was taken, and all of them, the best first."""

    facts: Facts
    reading: Mapping[str, Any]
    trials: tuple[Trial, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Open:
    """A checkpoint under one of its readings, the facts that are open, and what programs of its dialects do."""

    found: Recognised
    names: tuple[str, ...]
    own: Mapping[str, Any]


class PostNormGPT(OldGPT):
    """The same tensors with norms behind attention and MLP, in the stream: `x = ln_1(x + attn(x))`."""

    def states(self, ids: Tensor, caches: Sequence[Any] = ()) -> Tensor:
        """What the head reads: (B, T) -> (B, T, n_embd)."""
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]  # (B, T, n_embd)
        for block in self.h:
            assert isinstance(block, OldBlock)
            x = block.ln_1(x + block.attn(x))
            x = block.ln_2(x + block.mlp(x))
        final: Tensor = self.ln_f(x)  # (B, T, n_embd)
        return final


class RMSNormGPT(OldGPT):
    """The same tensors with RMSNorm for LayerNorm, where norms have no shifts."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__(spec)
        self.ln_f = nn.RMSNorm(spec.n_embd, eps=spec.norm_eps)  # type: ignore[assignment]
        for block in self.h:
            block.ln_1, block.ln_2 = (nn.RMSNorm(spec.n_embd, eps=spec.norm_eps) for _ in range(2))


KINDS: dict[str, type[OldGPT]] = {"pre": OldGPT, "post": PostNormGPT, "rms": RMSNormGPT}


def open_reading(checkpoint: Checkpoint, said: Facts) -> Open:
    """What is open about a checkpoint. Raises what `recognise` raises."""
    covers = covers_of(checkpoint, said)
    names = open_facts(checkpoint, covers, said)
    guessed: dict[str, Any] = {name: CHOICES[name][0] for name in names if name in CHOICES}
    guessed |= {"n_head": 1} if "n_head" in names else {}
    found = recognise(checkpoint, replace(said, **guessed))
    return Open(found=found, names=names, own=own_values(covers))


def settle(opened: Open, said: Facts, corpus: Corpus, *, progress: Progress = silent) -> Settled:
    """The reading with the lowest loss on DATA. See `open_reading`.

    Raises BadData for DATA that does not fit, UnknownLayout where norms behind or RMSNorm predict clearly better.
    """
    if not opened.names and not _has_open_order(opened, said):
        return Settled(facts=said, reading={}, trials=(), warnings=())
    ids = corpus.windows("val", opened.found.spec.block_size, vocab_size=opened.found.spec.vocab_size)
    state: State = {name: tensor.float() for name, tensor in opened.found.state().items()}
    trials, chance = _try_readings(opened, ids, state, progress), _chance(ids)
    order = _better_order(opened, state, trials, ids, chance) if _has_open_order(opened, said) else QKV
    if order != QKV:
        again = _try_readings(opened, ids, _in_order(state, order), progress)
        trials = tuple(replace(trial, facts={**trial.facts, "qkv_order": order}) for trial in again)
    _check_norms(opened, trials, chance, corpus.name)
    possible = [trial for trial in trials if trial.norm == "pre"]
    near = [trial.facts for trial in possible if not trial.loss - possible[0].loss >= NOISE]
    reading = max(near, key=lambda facts: sum(opened.own.get(name) == value for name, value in facts.items()))
    unsettled = [n for n in reading if any(f[n] != reading[n] and {**f, n: reading[n]} == reading for f in near)]
    warnings = [
        f"on DATA, {name} {reading[name]} predicts no better than another value; --{name.replace('_', '-')} changes it"
        for name in unsettled
        if name not in opened.own
    ]
    if not trials[0].loss < chance:
        warnings.append(
            "under no reading does it predict DATA better than chance that knows how often each token comes, so check "
            "that DATA is text that it knows"
        )
    told = {name: value for name, value in reading.items() if name not in unsettled or name not in opened.own}
    return Settled(facts=replace(said, **told), reading=reading, trials=trials, warnings=tuple(warnings))


def _has_open_order(opened: Open, said: Facts) -> bool:
    """Whether query, key and value lie in one tensor in an order of which only spellings tell."""
    fused = any(step.op in (SPLIT3, TRANSPOSE_SPLIT3) for step in opened.found.steps)
    return fused and opened.found.dialect.loose and said.qkv_order == QKV


def _better_order(opened: Open, state: State, trials: Sequence[Trial], ids: Windows, chance: float) -> str:
    """The order of query, key and value that predicts clearly better than the usual one, under the best reading of the
    rest and any number of heads that is open; the usual one where none does.
    """
    spec, few = opened.found.spec, _few(ids)
    best = next(trial.facts for trial in trials if trial.norm == "pre")
    heads = [facts["n_head"] for facts in _readings(spec, ["n_head"])] if "n_head" in best else [spec.n_head]
    losses = {
        order: min(_loss(spec, _in_order(state, order), {**best, "n_head": n}, few, FIRST_TOKENS) for n in heads)
        for order in ORDERS
    }
    order = min(losses, key=losses.__getitem__)
    return order if losses[order] < min(losses[QKV] - CLEARLY, chance) else QKV


def _in_order(state: State, order: str) -> State:
    """A State that was read as if its fused tensors held query, key and value, as one where they have another order."""
    parts = order.split(",")
    turned = {}
    for name in state:
        kind = name.split(".")[-2]
        source = "qkv"[parts.index(kind)] if kind in parts else kind
        turned[name] = state[name.replace(f".attn.{kind}.", f".attn.{source}.")]
    return turned


def _check_norms(opened: Open, trials: Sequence[Trial], chance: float, data: str) -> None:
    """Whether no other kind of norm, or place for it, predicts clearly better. Raises UnknownLayout."""
    best = {trial.norm: trial.loss for trial in reversed(trials)}
    for norm, said, hint in (
        ("post", "is a post-norm model: {} with norms behind attention and MLP, and {} with norms before", "pre-norm"),
        ("rms", "is a model with RMSNorm: {} with that, and {} with LayerNorm", "LayerNorm"),
    ):
        if best.get(norm, math.inf) == min(best.values()) < min(best["pre"] - CLEARLY, chance):
            losses = f"on {data} its loss is {best[norm]:.4f}", f"{best['pre']:.4f}"
            raise UnknownLayout(
                f"{opened.found.checkpoint.path} {said.format(*losses)}", hint=f"only {hint} models can be converted"
            )


def _few(ids: Windows) -> Windows:
    """The same windows, short enough for the first tokens."""
    return replace(ids, context=min(ids.context, FIRST_TOKENS)) if ids.ids.ndim == 1 else ids


def _loss(spec: GPTSpec, state: State, facts: Mapping[str, Any], part: Windows, tokens: int) -> float:
    """Of a model under one reading."""
    read = replace(spec, **{name: value for name, value in facts.items() if name != "norm"})
    model = KINDS[facts.get("norm", "pre")].from_state(read, state)
    loss = mean_loss(model, part, limit=max(1, tokens // part.context)).loss
    return math.inf if math.isnan(loss) else loss


def _try_readings(opened: Open, ids: Windows, state: State, progress: Progress) -> tuple[Trial, ...]:
    """Every reading, the lowest loss first: those of no promise come last, with their loss on a few tokens alone."""
    spec, few = opened.found.spec, _few(ids)

    def tried(facts: dict[str, Any], part: Windows, tokens: int) -> Trial:
        return Trial(facts=facts, loss=_loss(spec, state, facts, part, tokens))

    readings = list(_readings(spec, opened.names))
    first: list[Trial] = []
    for done, facts in enumerate(readings):
        progress(done, len(readings))
        first.append(tried(facts, few, FIRST_TOKENS))
    first = _sorted(first)
    best = {trial.norm: trial for trial in reversed(first)}  # of each kind of norms
    left = [t for t in first if t.loss <= first[0].loss + PROMISING or t is best[t.norm]]
    again: list[Trial] = []
    for done, trial in enumerate(left):
        progress(done, len(left))
        again.append(tried(trial.facts, ids, TOKENS))
    progress(len(left), len(left))
    return (*_sorted(again), *(trial for trial in first if trial not in left))


def _sorted(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: trial.loss)


def _chance(ids: Windows) -> float:
    """Entropy in nats of the tokens that are tried: the loss of who knows how often each comes, and nothing else."""
    limit = max(1, TOKENS // ids.context)
    targets = np.concatenate([targets.ravel() for _, targets in ids.batches(limit, limit=limit)])
    _, counts = np.unique(targets[targets != IGNORED], return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum())


def _readings(spec: GPTSpec, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    heads = [
        n for n in range(1, MOST_HEADS + 1)
        if spec.n_embd % n == 0 and spec.n_embd // n >= SMALLEST_HEAD and spec.n_embd // n % 2 == 0
    ]  # fmt: skip
    choices: dict[str, Sequence[Any]] = {name: heads if name == "n_head" else CHOICES[name] for name in names}
    if "norm" in names and not set(NORMS) & set(spec.biases):
        choices["norm"] = (*CHOICES["norm"], "rms")
    for values in itertools.product(*choices.values()):
        facts = dict(zip(choices, values, strict=True))
        if facts.get("n_head", spec.n_head) == 1 and facts.get("attn_scale") == "embd":
            continue  # one head is as wide as the model
        yield facts
