"""Tiny models for tests: specs, jittered weights, and checkpoints made by running a dialect's table backwards."""

from dataclasses import replace
from pathlib import Path

import torch

from modernize.dialects import DIALECTS, Dialect
from modernize.dialects.ops import (
    AFTER_TWO,
    FLATTEN,
    INTO_HEADS,
    KEEP,
    OUT_OF_HEADS,
    SCALE_INPUT,
    SPLIT3,
    SPLIT_SHARED,
    SQUEEZE,
    STACK_HEADS,
    STACK_HEADS_ALONE,
    TRANSPOSE,
    TRANSPOSE_SPLIT3,
)
from modernize.rewrite.plan import Plan
from modernize.spec import LINEARS, NORMS, GPTSpec, ModernConfig, State
from modernize.write import model_metadata, write_tensors

ALL_BIASES = tuple(p for p in (*NORMS, *LINEARS) if p != "head")


def spec(**change) -> GPTSpec:
    base = GPTSpec(
        n_layer=2,
        n_head=4,
        n_embd=32,
        n_inner=128,
        block_size=16,
        vocab_size=61,
        activation="gelu",
        attn_scale="head",
        norm_eps=1e-5,
        tied=True,
        biases=ALL_BIASES,
    )
    return replace(base, **change)


def jittered(of: GPTSpec, seed: int = 0, dtype: torch.dtype = torch.float32) -> State:
    """Weights of a size that matters: gains away from one, shifts and biases away from zero, rows with a mean."""
    random = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in of.shapes().items():
        noise = torch.randn(shape, generator=random, dtype=torch.float64)
        if len(shape) == 2:
            state[name] = (noise / shape[1] ** 0.5 * 1.2 + 0.02).to(dtype)
        elif name.endswith(".bias"):
            state[name] = (0.2 * noise + 0.05).to(dtype)
        else:
            state[name] = (1 + 0.2 * noise).to(dtype)
    return state


def modern(**change) -> tuple[ModernConfig, State]:
    """A modern model with every bias that a conversion can keep, and weights of a size that matters."""
    config = replace(Plan(bias="keep").config(spec()), **change)
    random = torch.Generator().manual_seed(8)
    state = {}
    for name, shape in config.shapes().items():
        noise = torch.randn(shape, generator=random, dtype=torch.float64)
        state[name] = noise / shape[-1] ** 0.5 if len(shape) == 2 else 0.2 * noise + name.endswith("gain")
    return config, state


def save_modern(path: Path, vocabulary: dict[str, int] | None = None, **change) -> Path:
    """The same as a file that a conversion could have written, in float32."""
    config, state = modern(**change)
    state = {name: tensor.float() for name, tensor in state.items()}
    source = {"sha256": "0" * 64, "dialect": "nanogpt", "facts": {}, "init": "fold"}
    metadata = model_metadata(config, vocabulary=vocabulary or {}, **source)
    write_tensors(path, state, metadata)
    return path


def ids(of: GPTSpec, batch: int = 3, length: int = 0, seed: int = 5) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, of.vocab_size, (batch, length or of.block_size), generator=random)


def as_dialect(state: State, of: GPTSpec, dialect: Dialect, *, spelling: int = 0) -> dict[str, torch.Tensor]:
    """The inverse of recognition: the file's own keys, in one of their spellings, from the canonical State."""
    whole = state | ({"head.weight": state["wte.weight"]} if of.tied else {})
    keys: dict[str, torch.Tensor] = {}
    for rule in dialect.rules:
        for i in range(of.n_layer if "{i}" in rule.source else 1):
            for p in ("weight", "bias") if "{p}" in rule.source else ("weight",):
                targets = [whole.get(t.format(i=i, p=p)) for t in rule.targets]
                if not rule.targets or any(t is None for t in targets):
                    continue
                parts = INVERSES[rule.op](targets, of)
                keys |= {rule.key(i=i, j=j, p=p, spelling=spelling): part for j, part in enumerate(parts)}
    return keys


def _into_heads(target, of):
    return target.unflatten(0, (of.n_head, of.head_dim)).transpose(1, 2).contiguous()


def _split_shared(targets, of):
    q, k, v = targets
    return [torch.cat([q, k[: of.head_dim], v[: of.head_dim]])]


# targets -> sources, one for each head where a row has a hole for it
INVERSES = {
    KEEP: lambda t, of: t,
    TRANSPOSE: lambda t, of: [t[0].t().contiguous()],
    SPLIT3: lambda t, of: [torch.cat(t)],
    TRANSPOSE_SPLIT3: lambda t, of: [torch.cat(t).t().contiguous()],
    SPLIT_SHARED: _split_shared,
    STACK_HEADS: lambda t, of: t[0].chunk(of.n_head),
    STACK_HEADS_ALONE: lambda t, of: t[0].chunk(of.n_head),
    INTO_HEADS: lambda t, of: [_into_heads(t[0], of)],
    OUT_OF_HEADS: lambda t, of: [t[0].t().unflatten(0, (of.n_head, of.head_dim)).contiguous()],
    FLATTEN: lambda t, of: [t[0].unflatten(0, (of.n_head, of.head_dim)).contiguous()],
    SQUEEZE: lambda t, of: [t[0][None]],
    AFTER_TWO: lambda t, of: [torch.cat([torch.zeros_like(t[0][:2]), t[0]])],
    SCALE_INPUT: lambda t, of: [t[1]],
}


def fitted(state: State, of: GPTSpec, dialect: Dialect) -> State:
    """A State that a dialect can hold: one key and value for all heads, no output projection, a scaled embedding."""
    ops = {rule.op for rule in dialect.rules}
    state = dict(state)
    for i in range(of.n_layer):
        if SPLIT_SHARED in ops:
            shared = [
                n for part in "kv" for n in (f"h.{i}.attn.{part}.weight", f"h.{i}.attn.{part}.bias") if n in state
            ]
            state |= {name: torch.cat([state[name][: of.head_dim]] * of.n_head) for name in shared}
        if STACK_HEADS_ALONE in ops:
            state[f"h.{i}.attn.o.weight"] = torch.eye(of.n_embd, dtype=state["wte.weight"].dtype)
            if f"h.{i}.attn.v.bias" in state:
                state[f"h.{i}.attn.o.bias"] = torch.zeros(of.n_embd, dtype=state["wte.weight"].dtype)
    if SCALE_INPUT in ops:
        state["wte.weight"] = state["head.weight"] * of.n_embd**0.5
    return state


def dialect(name: str) -> Dialect:
    return next(d for d in DIALECTS if d.name == name)


def model_args(of: GPTSpec, **change) -> dict:
    return {
        "n_layer": of.n_layer,
        "n_head": of.n_head,
        "n_embd": of.n_embd,
        "block_size": of.block_size,
        "bias": "ln_1" in of.biases,
        "vocab_size": of.vocab_size,
        "dropout": 0.0,
        **change,
    }


def save_nano(path: Path, of: GPTSpec, *, seed: int = 0, state=None, args=None, **more):
    """A nanoGPT checkpoint; `more` are entries beside the weights."""
    keys = as_dialect(state or jittered(of, seed), of, dialect("nanogpt"))
    torch.save({"model": keys, "model_args": args or model_args(of), "iter_num": 7, **more}, path)
    return path


def write_bin(folder: Path, of: GPTSpec, *, train: int = 4000, val: int = 400, seed: int = 3) -> Path:
    """A data folder with structure that can be learned: a token is mostly the one before plus one."""
    import numpy as np

    random = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for name, length in (("train.bin", train), ("val.bin", val)):
        steps = np.where(random.random(length) < 0.8, 1, random.integers(0, of.vocab_size, length))
        (np.cumsum(steps) % of.vocab_size).astype(np.uint16).tofile(folder / name)
    return folder
