"""Models that are no old GPT, by a name in them, and what to tell who brings one."""

import re
from collections.abc import Mapping

from modernize.checkpoint import TensorInfo

_MODERN = "there is nothing to convert; runtimes take such a model as it is"
_OTHER = "only GPTs with LayerNorm and learned positions can be converted; `modernize dialects` lists them"

# the first that matches one of the names counts
STRANGERS: tuple[tuple[str, str, str], ...] = (
    (
        r"(?:.*\.)?(?:lora_[AB]|lora_embedding_[AB]|base_layer)(?:\..*)?",
        "holds a LoRA adapter, beside its model or alone",
        "merge it into its model first: model.merge_and_unload().save_pretrained(DIR)",
    ),
    (r"(?:.*\.)?mixer\.A_log", "is Mamba, which has states in the place of attention", _OTHER),
    (
        r".*\.(?:SCB|qweight|qzeros|absmax|quant_state.*|weight_scale)",
        "holds quantized weights",
        "quantized weights cannot be converted; use the checkpoint that they were made from",
    ),
    (
        r"(?:.*\.)?(?:(?:rotary_emb|rotary|rope)\..*|freqs_cis|inv_freq|(?:cos|sin)_cached)",
        "has rotary positions (RoPE) already",
        _MODERN,
    ),
    (r"(?:.*\.)?gpt_neox\..*", "is GPT-NeoX or Pythia, with rotary positions (RoPE) already", _MODERN),
    (
        r"(?:.*\.)?word_embeddings_layernorm\..*",
        "is BLOOM, whose positions are slopes of attention (ALiBi) and not a table",
        _OTHER,
    ),
    (
        r".*\bquery_key_value\.(?:weight|bias)",
        "is in the layout of Megatron, where query, key and value are interleaved head by head",
        "bring it into Hugging Face's GPT-2 layout first, with Megatron's own converter",
    ),
    (r"(?:.*\.)?weight_ih_l\d+.*", "is a recurrent network (LSTM, GRU or RNN)", _OTHER),
    (r"(?:.*\.)?token_type_embeddings\.weight", "is BERT or another encoder", _OTHER),
    (r"(?:.*\.)?relative_attention_bias\.weight", "is T5, whose positions are relative", _OTHER),
    (r"(?:.*\.)?alibi(?:_slopes)?", "has slopes of attention (ALiBi) in the place of a table of positions", _OTHER),
    (r"(?:.*\.)?experts\.\d+\..*", "is a mixture of experts", _OTHER),
    (
        r"(?:.*\.)?(?:encoder_attn|crossattention|cross_attention|cross_attn|multihead_attn)\..*",
        "has cross-attention",
        _OTHER,
    ),
    (
        r"(?:.*\.)?(?:gate_proj|gate_up_proj|feed_forward\.w3|mlp\.w3)\.weight",
        "has a gated MLP (SwiGLU) as Llama has: it is of today's kind already",
        _MODERN,
    ),
    (
        r"(?:.*\.)?(?:pos_encoder|pos_encoding|positional_encoding|position_encoding|pe)(?:\.pe)?",
        "has sinusoidal positions, which are computed and not learned",
        _OTHER,
    ),
)
_RULES = tuple((re.compile(pattern), said, hint) for pattern, said, hint in STRANGERS)


# `model_type` of folders whose models have RMSNorm and RoPE already
MODERN_TYPES = frozenset(
    {
        "arcee", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2",
        "gemma3_text", "phi3", "olmo2", "olmo3", "smollm3", "granite", "glm4", "deepseek_v2", "deepseek_v3", "minicpm",
    }
)  # fmt: skip


def modern_folder(config: Mapping[str, object]) -> tuple[str, str]:
    """What is said of a folder with this `config.json` where there is nothing to convert, and the hint; or nothing."""
    if "modernize" in config:
        return "is already converted: an export that modernize wrote", _MODERN
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in MODERN_TYPES:
        return f"is a {kind!r} model by its config.json, with RMSNorm and RoPE already", _MODERN
    return "", ""


def stranger(tensors: Mapping[str, TensorInfo]) -> tuple[str, str]:
    """What is said of a model with these tensors, and the hint; nothing where no rule knows it."""
    for pattern, said, hint in _RULES:
        for name in tensors:
            if pattern.fullmatch(name):
                return f"{said}: it holds {name}", hint
    if len(tensors) == 1 and re.fullmatch(r".*(?:token_embedding_table|bigram|lookup).*", next(iter(tensors))):
        return f"is a bigram model: it holds {next(iter(tensors))} and nothing else", _OTHER
    norms = [name for name in tensors if re.search(r"norm|ln_?\d", name)]
    shifted = any(name.endswith(("bias", "shift", "beta", ".b")) for name in norms)
    if norms and not shifted and not _has_positions(tensors):
        return (
            "has norms without shifts and no table of positions, as models with RMSNorm and RoPE or with ALiBi have: "
            f"it holds {norms[0]}"
        ), _OTHER
    return "", ""


def _has_positions(tensors: Mapping[str, TensorInfo]) -> bool:
    return any(re.search(r"wpe|pos", name) for name in tensors)
