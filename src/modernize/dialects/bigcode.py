"""GPT-BigCode (SantaCoder, StarCoder): nanoGPT's names, one key and one value for all heads."""

from modernize.dialects.ops import SPLIT_SHARED
from modernize.dialects.table import PRE, Assumption, Dialect, Rule, drop, keep

BIGCODE = Dialect(
    name="bigcode",
    title="GPT-BigCode in Hugging Face transformers, with one key and value head",
    rules=(
        keep("[transformer.]wte.weight", "wte.weight"),
        keep("[transformer.]wpe.weight", "wpe.weight"),
        keep("[transformer.]h.{i}.ln_1.{p}", "h.{i}.ln_1.{p}"),
        drop("[transformer.]h.{i}.attn.bias"),
        drop("[transformer.]h.{i}.attn.masked_bias"),
        Rule(
            "[transformer.]h.{i}.attn.c_attn.{p}",
            ("h.{i}.attn.q.{p}", "h.{i}.attn.k.{p}", "h.{i}.attn.v.{p}"),
            SPLIT_SHARED,
        ),
        keep("[transformer.]h.{i}.attn.c_proj.{p}", "h.{i}.attn.o.{p}"),
        keep("[transformer.]h.{i}.ln_2.{p}", "h.{i}.ln_2.{p}"),
        keep("[transformer.]h.{i}.mlp.c_fc.{p}", "h.{i}.mlp.up.{p}"),
        keep("[transformer.]h.{i}.mlp.c_proj.{p}", "h.{i}.mlp.down.{p}"),
        keep("[transformer.]ln_f.{p}", "ln_f.{p}"),
        keep("lm_head.{p}", "head.{p}", optional=True),
    ),
    model_types=("gpt_bigcode",),
    must_be=(
        ("multi_query", True),
        ("num_key_value_heads", 1),
        ("scale_attn_weights", True),
        ("add_cross_attention", False),
    ),
    assumptions=(
        PRE,
        Assumption(field="activation", value="gelu_tanh"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
