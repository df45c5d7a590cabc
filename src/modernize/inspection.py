"""Inspect: what a checkpoint is, what conversion would do to each tensor, and what it would save. Loads no tensor that
recognition does not need, and no torch for a safetensors file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernize.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from modernize.choices import Fate, Tie, Weights
from modernize.dialects import Step
from modernize.recognise import Facts, Recognised, recognise
from modernize.rewrite.plan import Plan
from modernize.rewrite.tie import settle_tie
from modernize.spec import GPTSpec, ModernConfig, layerless
from modernize.stored import Stored, stored_in

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
    sha256: str
    architecture: str
    dialect: str
    config: GPTSpec | ModernConfig
    parameters: Parameters
    tensors: tuple[TensorFate, ...]
    warnings: tuple[str, ...]
    source: Stored | None  # for a file that modernize wrote: where it came from

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
        }


def inspect(
    path: str | Path,
    *,
    facts: Facts | None = None,
    weights: Weights = "model",
    plan: Plan | None = None,
    tie: Tie = "auto",
) -> Inspection:
    """Say what a checkpoint is and what `convert` with this plan (by default its own) would do to it.

    Raises InputRefused for what cannot be read or recognised; see `open_checkpoint` and `recognise`.
    """
    checkpoint = open_checkpoint(path, weights=weights)
    stored = stored_in(checkpoint)
    if stored:
        return _modern(checkpoint, stored)
    found = recognise(checkpoint, facts)
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
        warnings=(*found.warnings, *tied),
        source=None,
    )


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
        kind=step.rule.respelled(name, i="*", j="*"),
        info=found.checkpoint.tensors[name],
        fate=_summary(decided, moved="kept" if tuple(becomes) == (name,) else step.rule.op.fate),
        becomes=tuple(becomes),
    )


def _summary(decided: list[Fate | None], *, moved: Fate) -> Fate:
    if not decided:
        return "ignored"
    return next((moved for fate in decided if fate is None), decided[0] or moved)
