"""Put SiLU in the place of another activation: runtimes that know a model only as a Llama read nothing else."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from modernize.choices import ModernActivation
from modernize.layers import MLP
from modernize.model import ModernGPT
from modernize.spec import ModernConfig, State, names_of

# SiLU(s u) / s = u σ(s u) comes near the old activation. For GELU s = 1.702 (Hendrycks & Gimpel 2016), at most 0.0204
# off, near u = ±2.27. For ReLU the more the steeper, at most 0.278/s off; 4 leaves a slope that can still be trained.
SLOPES: Mapping[ModernActivation, float] = {"gelu": 1.702, "gelu_tanh": 1.702, "relu": 4.0}


def with_silu(state: State, config: ModernConfig) -> tuple[State, ModernConfig]:
    """A model with SiLU that does nearly what this one does: `up` and its bias times s, `down` over s.

    One that has SiLU already is given as it is.
    """
    if config.activation == "silu":
        return state, config
    slope, new = SLOPES[config.activation], dict(state)
    for up, down in zip(names_of("up", config.n_layer), names_of("down", config.n_layer), strict=True):
        for name in (f"{up}.weight", f"{up}.bias"):
            if name in state:
                new[name] = state[name] * slope
        new[f"{down}.weight"] = state[f"{down}.weight"] / slope
    return new, replace(config, activation="silu")


def put_silu(model: ModernGPT) -> None:
    """The same in a model, in place."""
    state, config = with_silu(model.to_state(), model.config)
    with torch.no_grad():
        for name, tensor in model.to_state().items():
            tensor.copy_(state[name])
    model.config = config
    for part in model.modules():
        if isinstance(part, MLP):
            part.activation = config.activation
