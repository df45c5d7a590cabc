"""`tok_emb`, `pos_emb` and `blocks` around nanoGPT's `c_attn` and `c_proj`: small course models."""

from modernize.dialects.table import PRE, Assumption, Dialect, drop, keep, split3

TOK_EMB = Dialect(
    name="tok-emb",
    title="course models with tok_emb, pos_emb and blocks.N.attn.c_attn",
    rules=(
        keep("tok_emb.weight", "wte.weight"),
        keep("pos_emb.weight", "wpe.weight"),
        keep("blocks.{i}.ln_1.{p}", "h.{i}.ln_1.{p}"),
        drop("blocks.{i}.attn.mask"),
        drop("blocks.{i}.attn.bias"),
        split3("blocks.{i}.attn.c_attn.{p}", "h.{i}.attn.q.{p}", "h.{i}.attn.k.{p}", "h.{i}.attn.v.{p}"),
        keep("blocks.{i}.attn.c_proj.{p}", "h.{i}.attn.o.{p}"),
        keep("blocks.{i}.ln_2.{p}", "h.{i}.ln_2.{p}"),
        keep("blocks.{i}.mlp.c_fc.{p}", "h.{i}.mlp.up.{p}"),
        keep("blocks.{i}.mlp.c_proj.{p}", "h.{i}.mlp.down.{p}"),
        keep("ln_f.{p}", "ln_f.{p}"),
        keep("head.{p}", "head.{p}", optional=True),
    ),
    assumptions=(
        PRE,
        Assumption(field="activation", value="gelu", doubt="the file does not say which GELU its program used"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
