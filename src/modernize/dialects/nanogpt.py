"""nanoGPT: torch.nn.Linear everywhere, a tied head, an envelope with `model_args`."""

from modernize.dialects.table import PRE, Assumption, Dialect, drop, keep, split3

ROWS = (
    keep("transformer.wte.weight", "wte.weight"),
    keep("transformer.wpe.weight", "wpe.weight"),
    keep("transformer.h.{i}.ln_1.{p}", "h.{i}.ln_1.{p}"),
    drop("transformer.h.{i}.attn.bias"),  # the causal mask
    drop("transformer.h.{i}.attn.masked_bias"),
    split3("transformer.h.{i}.attn.c_attn.{p}", "h.{i}.attn.q.{p}", "h.{i}.attn.k.{p}", "h.{i}.attn.v.{p}"),
    keep("transformer.h.{i}.attn.c_proj.{p}", "h.{i}.attn.o.{p}"),
    keep("transformer.h.{i}.ln_2.{p}", "h.{i}.ln_2.{p}"),
    keep("transformer.h.{i}.mlp.c_fc.{p}", "h.{i}.mlp.up.{p}"),
    keep("transformer.h.{i}.mlp.c_proj.{p}", "h.{i}.mlp.down.{p}"),
    keep("transformer.ln_f.{p}", "ln_f.{p}"),
    keep("lm_head.{|decoder.}{p}", "head.{p}", optional=True),
)

NANOGPT = Dialect(
    name="nanogpt",
    title="nanoGPT (karpathy/nanoGPT and its copies)",
    rules=ROWS,
    marks=("model_args",),
    assumptions=(
        PRE,
        Assumption(field="activation", value="gelu", doubt="nanoGPT before May 2023 used gelu_tanh"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
