"""Under which names programs keep the facts of a model, and what their values mean: tables, and how to read them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from modernize.checkpoint.records import Name
from modernize.choices import Activation

ALIASES: dict[str, tuple[str, ...]] = {
    "n_layer": ("n_layer", "n_layers", "num_layers", "num_hidden_layers", "n_blocks", "num_blocks"),
    "n_head": (
        "n_head",
        "n_heads",
        "num_heads",
        "num_attention_heads",
        "nhead",
        "nheads",
        "n_attn_heads",
        "n_attention_heads",
        "num_attn_heads",
        "attention_heads",
        "attn_heads",
        "num_head",
        "head_num",
        "decoder_attention_heads",
        "heads",
    ),
    "head_dim": ("head_dim", "head_size", "d_head"),
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
    "activation": (
        "activation",
        "activation_function",
        "activation_fn",
        "activation_type",
        "hidden_act",
        "hidden_activation",
        "mlp_activation",
        "act_fn",
        "act_type",
        "act",
        "nonlinearity",
    ),
    "norm_eps": (
        "norm_eps",
        "norm_epsilon",
        "layer_norm_epsilon",
        "layer_norm_eps",
        "layernorm_epsilon",
        "layernorm_eps",
        "ln_eps",
        "eps",
    ),
    "attn_scale": ("attn_scale",),
    "norm": ("norm_first", "pre_norm", "prenorm", "pre_ln", "norm_position", "post_norm", "postnorm", "post_ln"),
}
POST = ("post_norm", "postnorm", "post_ln")  # true where norms stand behind
# `eps` beside one of these is an optimizer's
_OPTIMIZER = ("lr", "learning_rate", "betas", "beta1", "weight_decay", "optimizer")

ACTIVATION_NAMES: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_erf": "gelu",
    "gelu_new": "gelu_tanh",
    "new_gelu": "gelu_tanh",
    "newgelu": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


_LARGEST = 1 << 63  # whole number that a setting may be
_LONGEST = 512  # characters of one that is a word


def whole_number(value: object) -> int | None:
    """A setting as a whole number, also where it is written as `4.0` or `"4"`; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < _LARGEST else None
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST:
        return int(value)
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else None


def number(value: object) -> float | None:
    """A setting as a number, also where it is text such as `1e-05`; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def activation(value: object) -> Activation | None:
    """What an activation is called here, however a program writes it: `GELU`, `nn.ReLU()`, `gelu_new`."""
    word = worded(value).lower().removesuffix("()").rpartition(".")[2]
    return ACTIVATION_NAMES.get(word)


def worded(value: object) -> str:
    """A setting as a word: what has no word of a usual length has none. Its text could be as long as a file likes."""
    plain = isinstance(value, bool | float | Name) or (isinstance(value, int) and abs(value) < _LARGEST)
    text = str(value) if plain else value
    return text if isinstance(text, str) and len(text) <= _LONGEST else ""


def entries(settings: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> Iterator[tuple[str, Any, str]]:
    """Values that settings give under one of these names, in capitals too: the name, the value, and where it stands."""
    for group, values in settings.items():
        spelled = {str(key).lower(): key for key in values}
        for name in names:
            key = spelled.get(name)
            if key is None or values[key] is None or (name == "eps" and any(word in spelled for word in _OPTIMIZER)):
                continue
            yield name, values[key], f"{group}.{key}".lstrip(".")


def look_up(settings: Mapping[str, Mapping[str, Any]], field: str) -> tuple[Any, str]:
    """The first value that settings give a field, and where it stands (`model_args.n_head`); else (None, "")."""
    for name, value, where in entries(settings, ALIASES[field]):
        return (not value if name in POST and isinstance(value, bool) else value), where
    return None, ""


def heads_told(settings: Mapping[str, Mapping[str, Any]], width: int) -> tuple[int | None, str]:
    """The number of heads that settings say, by itself or by the size of a head, and where; else (None, where)."""
    setting, where = look_up(settings, "n_head")
    size, there = look_up(settings, "head_dim")
    size = whole_number(size)
    if setting is None and size and width % size == 0:
        return width // size, there
    return whole_number(setting), where
