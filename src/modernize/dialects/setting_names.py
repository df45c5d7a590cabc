"""Under which names programs keep the facts of a model, and what their values mean: tables, and how to read them."""

from collections.abc import Mapping
from typing import Any

from modernize.choices import Activation

ALIASES: dict[str, tuple[str, ...]] = {
    "n_layer": ("n_layer", "n_layers", "num_layers", "num_hidden_layers", "n_blocks", "num_blocks"),
    "n_head": ("n_head", "n_heads", "num_heads", "num_attention_heads", "nhead", "n_attn_heads"),
    "n_embd": (
        "n_embd",
        "n_embed",
        "n_emb",
        "d_model",
        "d_embed",
        "dim_embedding",
        "embedding_dim",
        "emb_size",
        "emb_dim",
        "embed_dim",
        "embed_size",
        "hidden_size",
    ),
    "block_size": (
        "block_size",
        "context_length",
        "seq_length",
        "max_seq_len",
        "n_positions",
        "max_position_embeddings",
        "ctx",
        "n_ctx",
        "seq_len",
        "sequence_length",
        "context_size",
        "context_len",
        "max_len",
        "max_seq_length",
    ),
    "vocab_size": ("vocab_size",),
    "activation": ("activation", "activation_function", "hidden_act", "act_fn"),
    "norm_eps": ("norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
    "attn_scale": ("attn_scale",),
    "norm": ("norm_first", "pre_norm", "prenorm", "pre_ln"),
}

ACTIVATION_NAMES: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def whole_number(value: object) -> int | None:
    """A setting as a whole number, also where it is written as `4.0` or `"4"`; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else None


def look_up(settings: Mapping[str, Mapping[str, Any]], field: str) -> tuple[Any, str]:
    """The first value that settings give a field, and where it stands (`model_args.n_head`); else (None, "")."""
    for group, values in settings.items():
        for alias in ALIASES[field]:
            if values.get(alias) is not None:
                return values[alias], f"{group}.{alias}".lstrip(".")
    return None, ""
