"""nanoGPT written out by hand: its names, but norms call their gain `gamma` and their shift `beta`."""

from modernize.dialects.table import PRE, Assumption, Dialect, drop, keep, split3

NANOGPT_GAMMA = Dialect(
    name="nanogpt-gamma",
    title="nanoGPT with norms named gamma and beta (GPT_by_Hand)",
    rules=(
        keep("transformer.wte.weight", "wte.weight"),
        keep("transformer.wpe.weight", "wpe.weight"),
        keep("transformer.h.{i}.ln_1.gamma", "h.{i}.ln_1.weight"),
        keep("transformer.h.{i}.ln_1.beta", "h.{i}.ln_1.bias", optional=True),
        drop("transformer.h.{i}.attn.bias"),  # the causal mask
        split3("transformer.h.{i}.attn.c_attn.{p}", "h.{i}.attn.q.{p}", "h.{i}.attn.k.{p}", "h.{i}.attn.v.{p}"),
        keep("transformer.h.{i}.attn.c_proj.{p}", "h.{i}.attn.o.{p}"),
        keep("transformer.h.{i}.ln_2.gamma", "h.{i}.ln_2.weight"),
        keep("transformer.h.{i}.ln_2.beta", "h.{i}.ln_2.bias", optional=True),
        keep("transformer.h.{i}.mlp.c_fc.{p}", "h.{i}.mlp.up.{p}"),
        keep("transformer.h.{i}.mlp.c_proj.{p}", "h.{i}.mlp.down.{p}"),
        keep("transformer.ln_f.gamma", "ln_f.weight"),
        keep("transformer.ln_f.beta", "ln_f.bias", optional=True),
        keep("lm_head.{p}", "head.{p}", optional=True),
    ),
    assumptions=(
        PRE,
        Assumption(field="activation", value="gelu", doubt="the file does not say which GELU its program used"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
