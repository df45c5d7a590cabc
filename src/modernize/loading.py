"""Load any checkpoint as a model that runs: a ModernGPT from a file that modernize wrote, an OldGPT from any other."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from modernize.checkpoint import open_checkpoint
from modernize.choices import Weights
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.recognise import Facts, not_finite, recognise
from modernize.stored import Stored, stored_in

Model: TypeAlias = OldGPT | ModernGPT


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model with what is known of its file."""

    path: Path
    model: Model
    vocabulary: Mapping[str, int]
    stored: Stored | None  # for a modern file
    warnings: tuple[str, ...]


def load(path: str | Path, *, facts: Facts | None = None, weights: Weights = "model") -> Model:
    """The model of a checkpoint, on the CPU in its stored dtype: an nn.Module, `model(ids)` -> logits (B, T, vocab).

    A modern model comes ready to be trained, an old one frozen. Raises InputRefused; see `open_checkpoint` and
    `recognise`.
    """
    return load_whole(path, facts=facts, weights=weights).model


def load_whole(path: str | Path, *, facts: Facts | None = None, weights: Weights = "model") -> Loaded:
    """The same with its vocabulary, its history and the warnings about it. float16 and bfloat16 stay as they are."""
    checkpoint = open_checkpoint(path, weights=weights)
    stored = stored_in(checkpoint)
    if stored:
        state = {name: checkpoint.read(name) for name in stored.config.shapes()}
        for name, tensor in state.items():
            if not torch.isfinite(tensor).all():
                raise not_finite(checkpoint, name)
        return Loaded(
            path=checkpoint.path,
            model=ModernGPT.from_state(stored.config, state),
            vocabulary=stored.vocabulary,
            stored=stored,
            warnings=checkpoint.warnings,
        )
    found = recognise(checkpoint, facts)
    state = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in found.state().items()}
    return Loaded(
        path=checkpoint.path,
        model=OldGPT.from_state(found.spec, state),
        vocabulary=checkpoint.vocabulary,
        stored=None,
        warnings=found.warnings,
    )
