"""GPT-2 as `transformers` keeps it: nanoGPT's names, but Conv1D matrices, which are (in, out)."""

from modernize.dialects.table import PRE, Assumption, Dialect, drop, keep, transpose, transpose_split3

GPT2 = Dialect(
    name="gpt2",
    title="GPT-2 in Hugging Face transformers (GPT2LMHeadModel, GPT2Model)",
    rules=(
        keep("[transformer.]wte.weight", "wte.weight"),
        keep("[transformer.]wpe.weight", "wpe.weight"),
        keep("[transformer.]h.{i}.ln_1.{p}", "h.{i}.ln_1.{p}"),
        drop("[transformer.]h.{i}.attn.bias"),  # the causal mask
        drop("[transformer.]h.{i}.attn.masked_bias"),
        transpose_split3(
            "[transformer.]h.{i}.attn.c_attn.{p}", "h.{i}.attn.q.{p}", "h.{i}.attn.k.{p}", "h.{i}.attn.v.{p}"
        ),
        transpose("[transformer.]h.{i}.attn.c_proj.{p}", "h.{i}.attn.o.{p}"),
        keep("[transformer.]h.{i}.ln_2.{p}", "h.{i}.ln_2.{p}"),
        transpose("[transformer.]h.{i}.mlp.c_fc.{p}", "h.{i}.mlp.up.{p}"),
        transpose("[transformer.]h.{i}.mlp.c_proj.{p}", "h.{i}.mlp.down.{p}"),
        keep("[transformer.]ln_f.{p}", "ln_f.{p}"),
        keep("lm_head.{|decoder.}{p}", "head.{p}", optional=True),
    ),
    marks=("config.json",),
    model_types=("gpt2",),
    must_be=(
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ),
    assumptions=(
        PRE,
        Assumption(
            field="activation",
            value="gelu_tanh",
            doubt="GPT-2's own is gelu_tanh, its descendants may differ",
        ),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
