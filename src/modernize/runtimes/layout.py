"""The names of `transformers`, RoPE's pairs as halves, and what all its classes want to be told in `config.json`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modernize.spec import ModernConfig, State, names_of

NAMES = {
    "wte": "model.embed_tokens",
    "norm_1": "model.layers.{i}.input_layernorm",
    "q": "model.layers.{i}.self_attn.q_proj",
    "k": "model.layers.{i}.self_attn.k_proj",
    "v": "model.layers.{i}.self_attn.v_proj",
    "o": "model.layers.{i}.self_attn.o_proj",
    "norm_2": "model.layers.{i}.post_attention_layernorm",
    "up": "model.layers.{i}.mlp.up_proj",
    "down": "model.layers.{i}.mlp.down_proj",
    "norm_f": "model.norm",
    "head": "lm_head",
}
ATTENTION, MLP = ("q", "k", "v", "o"), ("up", "down")  # parts whose biases `config.json` has one word for


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Tensors by the names of a class, and the settings in `config.json` that belong to it."""

    architecture: str
    tensors: State
    config: dict[str, Any]


def to_halves(rows: Tensor, n_head: int) -> Tensor:
    """The rows of each head, (n_head · head_dim, …), with RoPE's pairs (2i, 2i+1) moved to (i, i + head_dim/2).

    ModernGPT turns neighbours, `transformers` turns halves; with queries and keys permuted alike all scores stay.
    """
    pairs = rows.reshape(n_head, -1, 2, *rows.shape[1:])  # (n_head, head_dim/2, 2, …)
    return pairs.transpose(1, 2).reshape(rows.shape)


def renamed(state: State, config: ModernConfig) -> State:
    """A State under the names of `transformers`, queries and keys in halves.

    Where one part of attention, or of the MLP, has a bias, all of its parts get one: of zeros.
    """
    whole = state | _missing_biases(state, config)
    heads = {"q": config.n_head, "k": config.n_kv_head}
    found = {}
    for name, tensor in whole.items():
        *home, part, kind = name.split(".")
        layer = home[1] if len(home) > 1 else ""
        new = f"{NAMES[part].format(i=layer)}.{'weight' if kind == 'gain' else kind}"
        found[new] = to_halves(tensor, heads[part]) if part in heads else tensor.contiguous()
    return found


def _missing_biases(state: State, config: ModernConfig) -> State:
    dtype = state["wte.weight"].dtype
    parts = [part for group in (ATTENTION, MLP) if set(group) & set(config.biases) for part in group]
    homes = [home for part in parts for home in names_of(part, config.n_layer) if f"{home}.bias" not in state]
    return {f"{home}.bias": torch.zeros(len(state[f"{home}.weight"]), dtype=dtype) for home in homes}


def common_settings(config: ModernConfig, *, architecture: str, model_type: str) -> dict[str, Any]:
    """What the class has to know of a model; nothing is left to a default of its own.

    RoPE stands there twice: `rope_parameters` is for transformers 5, `rope_theta` and `rope_scaling` for all before.
    """
    scaling: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scale != 1:
        scaling = {"rope_type": "linear", "factor": config.rope_scale}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_inner,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_kv_head,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.trained_context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "rope_parameters": {**scaling, "rope_theta": config.rope_base},
        "rope_scaling": scaling if "factor" in scaling else None,
        "attention_bias": any(part in config.biases for part in ATTENTION),
        "attention_dropout": 0.0,
        "mlp_bias": any(part in config.biases for part in MLP),
        "tie_word_embeddings": config.tied,
        "use_cache": True,
    }
