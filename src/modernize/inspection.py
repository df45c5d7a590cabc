"""Inspect: what a checkpoint is, what conversion would do to each tensor, and what it would save. Loads no tensor that
recognition does not need, and no torch for a safetensors file.
"""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modernize.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from modernize.choices import DataDType, Fate, Tie, Weights
from modernize.dialects import Step
from modernize.errors import UnknownLayout
from modernize.masks import check_masks
from modernize.progress import Stages, unseen
from modernize.recognise import Facts, Recognised, recognise
from modernize.rewrite.plan import Plan
from modernize.rewrite.tie import settle_tie
from modernize.spec import GPTSpec, ModernConfig, layerless
from modernize.stored import Stored, stored_in

if TYPE_CHECKING:
    from modernize.trial import Trial

OLD_ARCHITECTURE = "gpt-layernorm-learned"
NEW_ARCHITECTURE = "gpt-rmsnorm-rope"
CLEARLY = 0.05  # nats by which norms in another place have to be better, so that a model is refused for it


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters before and after conversion, a tied head counted once."""

    before: int
    after: int

    def to_json(self) -> dict[str, int]:
        """`{"before": …, "after": …}`."""
        return {"before": self.before, "after": self.after}


@dataclass(frozen=True, kw_only=True)
class TensorFate:
    """One tensor of the old file, and which tensors of the new one hold it afterwards."""

    name: str
    kind: str  # the same name for all layers and heads, `*` in the place of their numbers
    info: TensorInfo
    fate: Fate
    becomes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What `inspect` found."""

    path: Path
    format: str
    sha256: str
    architecture: str
    dialect: str
    config: GPTSpec | ModernConfig
    parameters: Parameters
    tensors: tuple[TensorFate, ...]
    warnings: tuple[str, ...]
    source: Stored | None  # for a file that modernize wrote: where it came from
    trials: "tuple[Trial, ...]" = ()  # with DATA: the loss under each possible reading, the lowest first

    def config_json(self) -> dict[str, Any]:
        """The facts of the model, by the field's names."""
        names = ["n_layer", "n_head", "n_embd", "n_inner", "block_size", "vocab_size", "activation"]
        names += ["attn_scale"] if isinstance(self.config, GPTSpec) else ["n_kv_head", "rope_base"]
        names += ["norm_eps", "tied"]
        return {name: getattr(self.config, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "path": str(self.path),
            "format": self.format,
            "sha256": self.sha256,
            "architecture": self.architecture,
            "dialect": self.dialect,
            "config": self.config_json(),
            "parameters": self.parameters.to_json(),
            "tensors": [
                {
                    "name": t.name,
                    "shape": list(t.info.shape),
                    "dtype": t.info.dtype,
                    "fate": t.fate,
                    "becomes": list(t.becomes),
                }
                for t in self.tensors
            ],
            "warnings": list(self.warnings),
            **({"trials": [trial.to_json() for trial in self.trials]} if self.trials else {}),
        }


def inspect(
    path: str | Path,
    *,
    facts: Facts | None = None,
    weights: Weights = "model",
    plan: Plan | None = None,
    tie: Tie = "auto",
    data: str | Path | None = None,
    tokenizer: str | None = None,
    data_dtype: DataDType = "uint16",
    progress: Stages = unseen,
) -> Inspection:
    """Say what a checkpoint is and what `convert` with this plan (by default its own) would do to it.

    With DATA, what neither the file nor `facts` say is tried, and the reading with the lowest loss is taken.

    Raises InputRefused for what cannot be read or recognised, or predicts best as a post-norm model; see
    `open_checkpoint`, `recognise` and `load_corpus`.
    """
    checkpoint = open_checkpoint(path, weights=weights)
    stored = stored_in(checkpoint)
    if stored:
        return _modern(checkpoint, stored)
    facts = facts or Facts()
    trials: tuple[Trial, ...] = ()
    if data is not None:
        facts, trials = _tried(checkpoint, facts, data, tokenizer=tokenizer, data_dtype=data_dtype, progress=progress)
    found = recognise(checkpoint, facts)
    check_masks(found.checkpoint, found.steps, most=1)
    plan, tied = settle_tie(found, plan or Plan(), tie)
    return Inspection(
        path=checkpoint.path,
        format=checkpoint.format,
        sha256=checkpoint.sha256(),
        architecture=OLD_ARCHITECTURE,
        dialect=found.dialect.name,
        config=found.spec,
        parameters=Parameters(before=found.spec.parameters(), after=plan.config(found.spec).parameters()),
        tensors=fates_of(found, plan),
        warnings=(*found.warnings, *tied, *_doubts(trials, found.spec.vocab_size)),
        source=None,
        trials=trials,
    )


def _tried(
    checkpoint: Checkpoint,
    said: Facts,
    data: str | Path,
    *,
    tokenizer: str | None,
    data_dtype: DataDType,
    progress: Stages,
) -> "tuple[Facts, tuple[Trial, ...]]":
    """The facts of the best reading, and all of them. Raises UnknownLayout where that is of a post-norm model."""
    from modernize.data import load_corpus_for
    from modernize.trial import first_reading, settled, try_readings

    first, names = first_reading(checkpoint, said)
    size = first.spec.vocab_size
    corpus = load_corpus_for(
        data,
        beside=checkpoint.path,
        vocabulary=checkpoint.vocabulary,
        vocab_size=size,
        tokenizer=tokenizer,
        dtype=data_dtype,
        progress=progress,
    )
    trials = try_readings(first, names, corpus, progress=partial(progress, "trying"))
    before = [trial for trial in trials if trial.facts.get("norm") != "post"]
    behind = [trial for trial in trials if trial.facts.get("norm") == "post"]
    if behind and behind[0].loss < min(before[0].loss - CLEARLY, math.log(size)):
        raise UnknownLayout(
            f"{checkpoint.path} is a post-norm model: on {corpus.name} its loss is {behind[0].loss:.4f} with norms "
            f"behind attention and MLP, and {before[0].loss:.4f} with norms before",
            hint="only pre-norm models can be converted",
        )
    return settled(said, before), trials


def _doubts(trials: "tuple[Trial, ...]", vocab_size: int) -> tuple[str, ...]:
    """A warning where no reading predicts better than chance."""
    if not trials or trials[0].loss < math.log(vocab_size):
        return ()
    return ("under no reading does it predict DATA better than chance, so check that DATA is text that it knows",)


def _modern(checkpoint: Checkpoint, stored: Stored) -> Inspection:
    size = stored.config.parameters()
    return Inspection(
        path=checkpoint.path,
        format=checkpoint.format,
        sha256=checkpoint.sha256(),
        architecture=NEW_ARCHITECTURE,
        dialect="modernize",
        config=stored.config,
        parameters=Parameters(before=size, after=size),
        tensors=tuple(
            TensorFate(name=name, kind=layerless(name), info=info, fate="kept", becomes=(name,))
            for name, info in checkpoint.tensors.items()
        ),
        warnings=checkpoint.warnings,
        source=stored,
    )


def fates_of(found: Recognised, plan: Plan) -> tuple[TensorFate, ...]:
    """The fate of every tensor of the file, in its order; every key is accounted for.

    Of a tensor with several targets, as a fused projection, that of a part which is carried over counts.
    """
    steps = {name: step for step in found.steps for name in step.sources}
    return tuple(_fate_of(name, steps[name], found, plan) for name in found.checkpoint.tensors)


def _fate_of(name: str, step: Step, found: Recognised, plan: Plan) -> TensorFate:
    decided: list[Fate | None] = []
    becomes: dict[str, None] = {}
    for target in step.targets:
        fate, more = plan.fate(target, found.spec)
        decided.append(fate)
        becomes |= dict.fromkeys(more)
    return TensorFate(
        name=found.checkpoint.raw_names[name],
        kind=step.kind,
        info=found.checkpoint.tensors[name],
        fate=_summary(decided, moved="kept" if tuple(becomes) == (name,) else step.op.fate),
        becomes=tuple(becomes),
    )


def _summary(decided: list[Fate | None], *, moved: Fate) -> Fate:
    if not decided:
        return "ignored"
    return next((moved for fate in decided if fate is None), decided[0] or moved)
