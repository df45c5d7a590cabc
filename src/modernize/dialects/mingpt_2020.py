"""The first minGPT (2020): positions are a bare parameter, key, query and value stand apart."""

from modernize.dialects.table import PRE, Assumption, Dialect, drop, keep, squeeze

MINGPT_2020 = Dialect(
    name="mingpt-2020",
    title="the first minGPT (karpathy/minGPT, 2020) and its copies",
    rules=(
        keep("tok_emb.weight", "wte.weight"),
        squeeze("pos_emb", "wpe.weight"),
        keep("blocks.{i}.ln1.{p}", "h.{i}.ln_1.{p}"),
        keep("blocks.{i}.ln2.{p}", "h.{i}.ln_2.{p}"),
        drop("blocks.{i}.attn.mask"),
        keep("blocks.{i}.attn.key.{p}", "h.{i}.attn.k.{p}"),
        keep("blocks.{i}.attn.query.{p}", "h.{i}.attn.q.{p}"),
        keep("blocks.{i}.attn.value.{p}", "h.{i}.attn.v.{p}"),
        keep("blocks.{i}.attn.proj.{p}", "h.{i}.attn.o.{p}"),
        keep("blocks.{i}.mlp.0.{p}", "h.{i}.mlp.up.{p}"),
        keep("blocks.{i}.mlp.2.{p}", "h.{i}.mlp.down.{p}"),
        keep("ln_f.{p}", "ln_f.{p}"),
        keep("head.{p}", "head.{p}"),
    ),
    assumptions=(
        PRE,
        Assumption(field="activation", value="gelu"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
