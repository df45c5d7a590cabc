"""Inspect: what a checkpoint is, what conversion would do to each tensor, and what it would save. Loads no tensor that
recognition does not need, and no torch for a safetensors file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernize.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from modernize.choices import Weights
from modernize.recognise import Facts, Recognised, recognise
from modernize.rewrite.plan import Fate, Plan
from modernize.spec import GPTSpec, ModernConfig
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
        """As CLI.md promises it."""
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
    path: str | Path, *, facts: Facts | None = None, weights: Weights = "model", plan: Plan | None = None
) -> Inspection:
    """Say what a checkpoint is and what `plan` (by default that of `convert`) would do to it.

    Raises InputRefused for what cannot be read or recognised; see `open_checkpoint` and `recognise`.
    """
    checkpoint = open_checkpoint(path, weights=weights)
    stored = stored_in(checkpoint)
    if stored:
        return _modern(checkpoint, stored)
    plan = plan or Plan()
    found = recognise(checkpoint, facts)
    return Inspection(
        path=checkpoint.path,
        format=checkpoint.format,
        sha256=checkpoint.sha256(),
        architecture=OLD_ARCHITECTURE,
        dialect=found.dialect.name,
        config=found.spec,
        parameters=Parameters(before=found.spec.parameters(), after=plan.config(found.spec).parameters()),
        tensors=fates_of(found, plan),
        warnings=found.warnings,
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
            TensorFate(name=name, info=info, fate="kept", becomes=(name,)) for name, info in checkpoint.tensors.items()
        ),
        warnings=checkpoint.warnings,
        source=stored,
    )


def fates_of(found: Recognised, plan: Plan) -> tuple[TensorFate, ...]:
    """The fate of every tensor of the file, in its order; every key is accounted for."""
    steps = {name: step for step in found.steps for name in step.sources}
    fates = []
    for name, info in found.checkpoint.tensors.items():
        step = steps[name]
        fate: Fate = "ignored"
        becomes: tuple[str, ...] = ()
        for target in step.targets:
            if target == "head.weight" and found.spec.tied:
                fate, more = _tied_head_fate(plan)
            else:
                decided, more = plan.fate(target, found.spec)
                fate = decided or _moved(name, step.rule.op.fate, more)
            becomes += tuple(new for new in more if new not in becomes)
        raw = found.checkpoint.raw_names[name]
        fates.append(TensorFate(name=raw, info=info, fate=fate, becomes=becomes))
    return tuple(fates)


def _tied_head_fate(plan: Plan) -> tuple[Fate, tuple[str, ...]]:
    """A tied head that the file holds under its own name as well: it is the embedding's matrix."""
    return "renamed", ("head.weight",) if plan.untie else ("wte.weight",)


def _moved(name: str, fate: str, becomes: tuple[str, ...]) -> Fate:
    """`kept` for the same name, else what the row's op calls it."""
    if becomes == (name,):
        return "kept"
    return "split" if fate == "split" else "renamed"
