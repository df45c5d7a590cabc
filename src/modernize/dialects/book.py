"""The book "Build a Large Language Model (From Scratch)": W_query, W_key, W_value, norms with scale and shift."""

from modernize.dialects.table import PRE, Assumption, Dialect, drop, keep

ROWS = (
    keep("tok_emb.weight", "wte.weight"),
    keep("pos_emb.weight", "wpe.weight"),
    drop("trf_blocks.{i}.att.mask"),
    drop("trf_blocks.{i}.att.mask_bool"),
    keep("trf_blocks.{i}.att.{out_proj|proj}.{p}", "h.{i}.attn.o.{p}"),
    keep("trf_blocks.{i}.ff.layers.0.{p}", "h.{i}.mlp.up.{p}"),
    keep("trf_blocks.{i}.ff.layers.2.{p}", "h.{i}.mlp.down.{p}"),
    keep("trf_blocks.{i}.norm1.{scale|weight}", "h.{i}.ln_1.weight"),
    keep("trf_blocks.{i}.norm1.{shift|bias}", "h.{i}.ln_1.bias", optional=True),
    keep("trf_blocks.{i}.norm2.{scale|weight}", "h.{i}.ln_2.weight"),
    keep("trf_blocks.{i}.norm2.{shift|bias}", "h.{i}.ln_2.bias", optional=True),
    keep("final_norm.{scale|weight}", "ln_f.weight"),
    keep("final_norm.{shift|bias}", "ln_f.bias", optional=True),
    keep("out_head.{p}", "head.{p}", optional=True),
)
ASSUMPTIONS = (
    PRE,
    Assumption(field="activation", value="gelu_tanh", doubt="the book has gelu_tanh, copies also nn.GELU: gelu"),
    Assumption(field="attn_scale", value="head"),
    Assumption(field="norm_eps", value=1e-5),
)

BOOK = Dialect(
    name="book",
    title='the book "Build a Large Language Model (From Scratch)"',
    rules=(
        *ROWS,
        keep("trf_blocks.{i}.att.W_query.{p}", "h.{i}.attn.q.{p}"),
        keep("trf_blocks.{i}.att.W_key.{p}", "h.{i}.attn.k.{p}"),
        keep("trf_blocks.{i}.att.W_value.{p}", "h.{i}.attn.v.{p}"),
    ),
    assumptions=ASSUMPTIONS,
)
