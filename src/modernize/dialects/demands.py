"""Settings that change what a model computes, under their usual names, and the only values that can be carried over.

Whatever program wrote a file: where it says that a model has a window, a cap on its scores or another norm, its tensors
alone would be read as a model without. What only one dialect's programs write, its own `must_be` has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from modernize.dialects.setting_names import entries, heads_told, whole_number, worded
from modernize.spec import GPTSpec

Settings = Mapping[str, Mapping[str, Any]]
_NO = ("false", "no", "none", "off", "0")
_YES = ("true", "yes", "on", "1")


@dataclass(frozen=True)
class Demand:
    """One row: settings of one meaning, whether a value of theirs fits a model, and in words which value does."""

    names: tuple[str, ...]
    only: str  # with the model's sizes in braces
    fits: Callable[[Any, GPTSpec, Settings], bool]
    but: str = ""  # what else there is to say of other values


@dataclass(frozen=True)
class Contradiction:
    """A setting that doesn't fit: where it stands, its value, and the sentence's other half."""

    where: str
    value: object
    only: str
    but: str


def _word(value: object) -> str:
    return "".join(c for c in worded(value).lower() if c.isalnum())


def _off(value: Any, spec: GPTSpec, settings: Settings) -> bool:  # noqa: ANN401
    return not value or value == -1 or _word(value) in _NO


def _on(value: Any, spec: GPTSpec, settings: Settings) -> bool:  # noqa: ANN401
    return value == 1 or _word(value) in _YES


def _one_of(*words: str) -> Callable[[Any, GPTSpec, Settings], bool]:
    """For settings that are words: a number or a bool under such a name means something else."""
    return lambda value, spec, settings: not isinstance(value, str) or _word(value) in words


def _no_window(value: Any, spec: GPTSpec, settings: Settings) -> bool:  # noqa: ANN401
    return _off(value, spec, settings) or (whole_number(value) or 0) >= spec.block_size


def _everywhere(value: Any, spec: GPTSpec, settings: Settings) -> bool:  # noqa: ANN401
    kinds = value if isinstance(value, list | tuple) else [value]
    return not value or all(_word(kind).startswith(("global", "full")) for kind in kinds)


def _all_heads(value: Any, spec: GPTSpec, settings: Settings) -> bool:  # noqa: ANN401
    told, _ = heads_told(settings, spec.n_embd)
    return _off(value, spec, settings) or told is None or whole_number(value) in (told, spec.n_head)


def _head_size(value: Any, spec: GPTSpec, settings: Settings) -> bool:  # noqa: ANN401
    told, _ = heads_told(settings, spec.n_embd)
    size = whole_number(value)
    return size is None or size == spec.head_dim or (told is not None and size * told == spec.n_embd)


def _once(value: Any, spec: GPTSpec, settings: Settings) -> bool:  # noqa: ANN401
    return value == 1 or _off(value, spec, settings)


_MODERN = "RMSNorm with learned positions cannot be converted; "
DEMANDS: tuple[Demand, ...] = (
    Demand(("use_rope", "rope", "use_rotary", "rotary", "rotary_emb", "use_rotary_emb"), "False", _off),
    Demand(("alibi", "use_alibi"), "False", _off),
    Demand(
        (
            "positional_embedding_type",
            "position_embedding_type",
            "pos_embedding_type",
            "pos_emb_type",
            "pos_embed_type",
            "position_encoding_type",
            "positional_encoding_type",
            "pos_encoding_type",
            "position_encoding",
            "positional_encoding",
            "pos_encoding",
            "pos_enc",
        ),
        "absolute, learned or standard",
        _one_of("absolute", "learned", "learnable", "learnedabsolute", "standard", "trainable", *_YES),
    ),
    Demand(("causal", "is_causal"), "True", _on),
    Demand(("bidirectional",), "False", _off),
    Demand(("attention_dir",), "causal", _one_of("causal")),
    Demand(
        ("sliding_window", "window_size", "attention_window", "attn_window", "local_window"),
        "None or at least {block_size}",
        _no_window,
    ),
    Demand(("use_local_attn", "local_attention", "local_attn"), "False", _off),
    Demand(("attn_types", "layer_types"), "global", _everywhere),
    Demand(
        ("parallel_residual", "use_parallel_residual", "parallel_attn", "parallel_attn_mlp", "parallel_block"),
        "False",
        _off,
    ),
    Demand(("qk_norm", "use_qk_norm", "qknorm", "qk_layernorm"), "False", _off),
    Demand(
        (
            "logit_softcap",
            "logits_softcap",
            "logit_softcapping",
            "final_logit_softcapping",
            "attn_logit_softcapping",
            "attn_logit_softcap",
            "attn_softcap",
            "softcap",
            "output_logits_soft_cap",
            "attn_scores_soft_cap",
        ),
        "None or 0",
        _off,
    ),
    Demand(
        (
            "n_kv_head",
            "n_kv_heads",
            "num_kv_heads",
            "num_key_value_heads",
            "n_key_value_heads",
            "n_query_groups",
            "num_query_groups",
        ),
        "{n_head}",
        _all_heads,
    ),
    Demand(("multi_query",), "False", _off),
    Demand(("head_dim", "head_size", "d_head"), "{head_dim}", _head_size),
    Demand(
        ("norm_type", "normalization_type", "norm", "norm_layer", "norm_class", "normalization", "_norm_class"),
        "LayerNorm",
        _one_of("layernorm", "ln", "lnpre", "layernormpre", "nnlayernorm", "torchnnlayernorm", "pre", "prenorm"),
        _MODERN,
    ),
    Demand(("use_rmsnorm", "use_rms_norm", "rmsnorm", "rms_norm", "final_rms"), "False", _off, _MODERN),
    Demand(("use_normalization_before_and_after", "sandwich_norm"), "False", _off),
    Demand(("gated_mlp", "use_swiglu", "swiglu", "use_glu"), "False", _off),
    Demand(("scale_attn_weights", "use_attn_scale"), "True", _on),
    Demand(("scale_attn_by_inverse_layer_idx",), "False", _off),
    Demand(("add_cross_attention",), "False", _off),
    Demand(("scale_embedding", "scale_embeddings", "embd_scale", "scale_emb", "mup", "use_mup"), "False", _off),
    Demand(
        ("embedding_multiplier", "residual_multiplier", "logits_scaling", "residual_scale", "embeddings_scale"),
        "1",
        _once,
    ),
)


def contradiction(settings: Settings, spec: GPTSpec, own: Mapping[str, object]) -> Contradiction | None:
    """The first setting whose value cannot be carried over; `own` are a dialect's, which come before the usual ones."""
    for name, value, where in entries(settings, own):
        if value != own[name]:
            return Contradiction(where, value, str(own[name]), "")
    sizes = {"block_size": spec.block_size, "n_head": spec.n_head, "head_dim": spec.head_dim}
    for demand in DEMANDS:
        for name, value, where in entries(settings, demand.names):
            if name not in own and not demand.fits(value, spec, settings):
                return Contradiction(where, value, demand.only.format(**sizes), demand.but)
    return None
