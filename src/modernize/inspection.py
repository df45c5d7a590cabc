"""Inspect: what a checkpoint is, what conversion would do to each tensor, and what it would save. Loads no tensor that
recognition does not need, and no torch for a safetensors file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modernize.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from modernize.choices import DataDType, Fate, Tie, Weights
from modernize.dialects import Step
from modernize.errors import UsageError
from modernize.masks import check_masks
from modernize.progress import Stages, unseen
from modernize.recognise import Facts, Recognised, recognise
from modernize.rewrite.plan import Plan
from modernize.rewrite.tie import settle_tie
from modernize.spec import GPTSpec, ModernConfig, layerless
from modernize.stored import Stored, stored_in

if TYPE_CHECKING:
    from modernize.trial import Settled, Trial

OLD_ARCHITECTURE = "gpt-layernorm-learned"
NEW_ARCHITECTURE = "gpt-rmsnorm-rope"


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
    checkpoint: Checkpoint = field(repr=False, compare=False)
    architecture: str
    dialect: str
    config: GPTSpec | ModernConfig
    parameters: Parameters
    tensors: tuple[TensorFate, ...]
    warnings: tuple[str, ...]
    source: Stored | None  # for a file that modernize wrote: where it came from
    trials: "tuple[Trial, ...]" = ()  # with DATA: the loss under each possible reading, the lowest first
    reading: Mapping[str, Any] = field(default_factory=dict)  # and the facts of that which was taken

    @cached_property
    def sha256(self) -> str:
        """The hash of the file, for which all of it is read when it is first asked for. Raises UnreadableFile."""
        return self.checkpoint.sha256()

    def config_json(self) -> dict[str, Any]:
        """The facts of the model, by the field's names."""
        names = ["n_layer", "n_head", "n_embd", "n_inner", "block_size", "vocab_size", "activation"]
        names += ["attn_scale"] if isinstance(self.config, GPTSpec) else ["n_kv_head", "rope_base"]
        names += ["norm_eps", "tied"]
        return {name: getattr(self.config, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints, the hash with it."""
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

    Raises InputRefused for what cannot be read or recognised, or predicts best as a model that can't be converted, and
    UsageError for DATA with a modern file; see `open_checkpoint`, `recognise`, `load_corpus` and `settle`.
    """
    checkpoint = open_checkpoint(path, weights=weights)
    stored = stored_in(checkpoint)
    if stored and data is not None:
        raise UsageError(
            f"{path} is a modern model, and there is nothing for --data to settle",
            hint=f"`modernize eval {path} --data {data}` measures its loss",
        )
    if stored:
        return _modern(checkpoint, stored)
    facts = facts or Facts()
    settled: Settled | None = None
    if data is not None:
        settled = _tried(checkpoint, facts, data, tokenizer=tokenizer, data_dtype=data_dtype, progress=progress)
        facts = settled.facts
    found = recognise(checkpoint, facts)
    check_masks(found.checkpoint, found.steps, most=1)
    plan, tied = settle_tie(found, plan or Plan(), tie)
    return Inspection(
        path=checkpoint.path,
        format=checkpoint.format,
        checkpoint=checkpoint,
        architecture=OLD_ARCHITECTURE,
        dialect=found.dialect.name,
        config=found.spec,
        parameters=Parameters(before=found.spec.parameters(), after=plan.config(found.spec).parameters()),
        tensors=fates_of(found, plan),
        warnings=(*found.warnings, *tied, *(settled.warnings if settled else ())),
        source=None,
        trials=settled.trials if settled else (),
        reading=settled.reading if settled else {},
    )


def _tried(
    checkpoint: Checkpoint,
    said: Facts,
    data: str | Path,
    *,
    tokenizer: str | None,
    data_dtype: DataDType,
    progress: Stages,
) -> "Settled":
    """What DATA settles. Raises what `settle` raises."""
    from modernize.data import load_corpus_for
    from modernize.trial import open_reading, settle

    opened = open_reading(checkpoint, said)
    corpus = load_corpus_for(
        data,
        beside=checkpoint.path,
        vocabulary=checkpoint.vocabulary,
        vocab_size=opened.found.spec.vocab_size,
        tokenizer=tokenizer,
        dtype=data_dtype,
        progress=progress,
    )
    return settle(opened, said, corpus, progress=partial(progress, "trying"))


def _modern(checkpoint: Checkpoint, stored: Stored) -> Inspection:
    size = stored.config.parameters()
    return Inspection(
        path=checkpoint.path,
        format=checkpoint.format,
        checkpoint=checkpoint,
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
