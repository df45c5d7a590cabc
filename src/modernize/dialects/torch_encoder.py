"""torch's own nn.TransformerEncoder with a causal mask: whether its norms stand before, names don't say."""

from modernize.dialects.spellings import EMBEDDINGS, EPS, GAIN, HEAD, NORM_F, SHIFT
from modernize.dialects.table import Assumption, Dialect, keep, split3

LAYER = "{transformer.|encoder.|transformer_encoder.|blocks.|decoder.|}layers.{i}."
LAST = "{|transformer.|encoder.|transformer_encoder.|blocks.|decoder.}" + NORM_F

TORCH_ENCODER = Dialect(
    name="torch-encoder",
    title="models around nn.TransformerEncoder, where norm_first=True",
    rules=(
        *EMBEDDINGS,
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
        keep(LAST + GAIN, "ln_f.weight"),
        keep(LAST + SHIFT, "ln_f.bias", optional=True),
        HEAD,
    ),
    assumptions=(
        Assumption(field="attn_scale", value="head"),
        EPS,
    ),
)
