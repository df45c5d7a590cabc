"""The plain moves: what a modern model has no place for is dropped, what it starts anew is set to one."""

import math

import torch

from modernize.spec import GPTSpec, State


def drop_positions(state: State, spec: GPTSpec) -> State:
    """The position table goes; RoPE takes its place."""
    return {name: t for name, t in state.items() if not name.startswith("wpe.")}


def drop_biases(state: State, spec: GPTSpec) -> State:
    """Every bias and every shift goes."""
    return {name: t for name, t in state.items() if not name.endswith(".bias")}


def reset_gains(state: State, spec: GPTSpec) -> State:
    """Every norm's gain is set to one."""
    gains = ("ln_1.weight", "ln_2.weight", "ln_f.weight")
    return {name: torch.ones_like(t) if name.endswith(gains) else t for name, t in state.items()}


def scale_queries(state: State, spec: GPTSpec) -> State:
    """Scores over √width become scores over √(head size): `q ← q·√(head_dim / n_embd)`. The same scores.

    Nothing to do for a model that divides by √(head size) already.
    """
    if spec.attn_scale == "head":
        return dict(state)
    factor = math.sqrt(spec.head_dim / spec.n_embd)
    queries = (".attn.q.weight", ".attn.q.bias")
    return {name: t * factor if name.endswith(queries) else t for name, t in state.items()}


def rename(state: State, spec: GPTSpec) -> State:
    """Modern names: a LayerNorm's weight becomes an RMSNorm's gain."""
    return {modern_name(name): t for name, t in state.items()}


def modern_name(name: str) -> str:
    """`h.0.ln_1.weight` -> `h.0.norm_1.gain`; other names stay."""
    *home, part, kind = name.split(".")
    if part in ("ln_1", "ln_2", "ln_f") and kind == "weight":
        return ".".join([*home, part.replace("ln_", "norm_"), "gain"])
    return name
