"""torch's own nn.TransformerEncoder with a causal mask: whether its norms stand before, names don't say."""

from modernize.dialects.table import Assumption, Dialect, drop, keep, split3

LAYER = "{transformer.|encoder.|transformer_encoder.|blocks.|decoder.|}layers.{i}."

TORCH_ENCODER = Dialect(
    name="torch-encoder",
    title="models around nn.TransformerEncoder, where norm_first=True",
    rules=(
        keep("{token_embedding_table|token_embedding|token_emb|tok_emb|embedding|embed|wte}.weight", "wte.weight"),
        keep("{position_embedding_table|position_embedding|pos_embedding|pos_emb|pos_embed|wpe}.weight", "wpe.weight"),
        drop("{mask|tril|causal_mask}"),
        split3(LAYER + "self_attn.in_proj_weight", "h.{i}.attn.q.weight", "h.{i}.attn.k.weight", "h.{i}.attn.v.weight"),
        split3(
            LAYER + "self_attn.in_proj_bias",
            "h.{i}.attn.q.bias",
            "h.{i}.attn.k.bias",
            "h.{i}.attn.v.bias",
            optional=True,
        ),
        keep(LAYER + "self_attn.out_proj.{p}", "h.{i}.attn.o.{p}"),
        keep(LAYER + "linear1.{p}", "h.{i}.mlp.up.{p}"),
        keep(LAYER + "linear2.{p}", "h.{i}.mlp.down.{p}"),
        keep(LAYER + "norm1.{p}", "h.{i}.ln_1.{p}"),
        keep(LAYER + "norm2.{p}", "h.{i}.ln_2.{p}"),
        keep("{ln_f|ln|norm|final_norm|transformer.norm|encoder.norm|transformer_encoder.norm}.{p}", "ln_f.{p}"),
        keep("{lm_head|head|output|fc_out}.{p}", "head.{p}", optional=True),
    ),
    asks_norm=True,
    assumptions=(
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
