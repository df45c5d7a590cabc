"""Load any checkpoint as a model that runs: a ModernGPT from a file that modernize wrote, an OldGPT from any other."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch

from modernize.checkpoint import open_checkpoint
from modernize.choices import Weights
from modernize.errors import UsageError
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.recognise import Facts, not_finite, recognise
from modernize.spec import ModernConfig
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


@dataclass(frozen=True, kw_only=True)
class Rope:
    """How a modern model turns queries and keys, where that is not to be as its file says: another base, or positions
    divided by a scale (position interpolation, Chen et al. 2023). None is as the file says.

    Raises UsageError for numbers that cannot be.
    """

    base: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.base is not None and not 1 < self.base < math.inf:
            raise UsageError(f"--rope-base {self.base} is not a number above 1", hint="10000 is usual")
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise UsageError(f"--rope-scale {self.scale} is not a number above 0", hint="2 halves every distance")

    def of(self, config: ModernConfig) -> ModernConfig:
        """The same model, turned so."""
        base, scale = self.base or config.rope_base, self.scale or config.rope_scale
        return replace(config, rope_base=base, rope_scale=scale)


AS_WRITTEN = Rope()


def load(path: str | Path, *, facts: Facts | None = None, weights: Weights = "model", rope: Rope = AS_WRITTEN) -> Model:
    """The model of a checkpoint, on the CPU in its stored dtype: an nn.Module, `model(ids)` -> logits (B, T, vocab).

    A modern model comes ready to be trained, an old one frozen. Raises InputRefused; see `open_checkpoint` and
    `recognise`; and UsageError for another RoPE of an old model.
    """
    return load_whole(path, facts=facts, weights=weights, rope=rope).model


def load_modern(path: Path, *, rope: Rope = AS_WRITTEN, wanted: str) -> tuple[ModernGPT, Stored, Loaded]:
    """A model that modernize wrote, its history, and all that is known of it.

    Raises UsageError for any other, with what was `wanted` of it, before anything is asked about an old one.
    """
    if stored_in(open_checkpoint(path)) is None:
        raise UsageError(
            f"{path} is an old model, and only a converted one is {wanted}",
            hint=f"convert it first: modernize convert {path} NEW.safetensors",
        )
    loaded = load_whole(path, rope=rope)
    assert isinstance(loaded.model, ModernGPT)
    assert loaded.stored is not None
    return loaded.model, loaded.stored, loaded


def load_whole(
    path: str | Path,
    *,
    facts: Facts | None = None,
    weights: Weights = "model",
    rope: Rope = AS_WRITTEN,
    successor: Stored | None = None,
) -> Loaded:
    """The same with its vocabulary, its history and the warnings about it. float16 and bfloat16 stay as they are.

    `successor` is a modern model: what it knows of the old one that it was made from need not be said again.
    """
    checkpoint = open_checkpoint(path, weights=weights)
    stored = stored_in(checkpoint)
    if stored:
        state = {name: checkpoint.read(name) for name in stored.config.shapes()}
        for name, tensor in state.items():
            if not torch.isfinite(tensor).all():
                raise not_finite(checkpoint, name)
        return Loaded(
            path=checkpoint.path,
            model=ModernGPT.from_state(rope.of(stored.config), state),
            vocabulary=stored.vocabulary,
            stored=stored,
            warnings=checkpoint.warnings,
        )
    if rope != AS_WRITTEN:
        raise UsageError(
            f"{path} is an old model, which has no RoPE to change", hint="leave out --rope-base and --rope-scale"
        )
    doubts: list[str] = []
    if successor and successor.sha256 == checkpoint.sha256():
        said, kept = facts or Facts(), successor.config.activation
        if said.activation not in {None, kept} and kept != "silu":
            doubts.append(f"--activation {said.activation}, and {path} was converted with {kept}: one of them is wrong")
        facts = said.or_else(successor.facts)
    elif successor:
        doubts.append(f"{path} is not the file that the modern model was converted from")
    found = recognise(checkpoint, facts)
    state = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in found.state().items()}
    return Loaded(
        path=checkpoint.path,
        model=OldGPT.from_state(found.spec, state),
        vocabulary=checkpoint.vocabulary,
        stored=None,
        warnings=(*doubts, *found.warnings),
    )
