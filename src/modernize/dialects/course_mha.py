"""Course models that use torch's nn.MultiheadAttention in blocks of their own."""

from modernize.dialects.spellings import AROUND, ATTENTION, EPS, NORM_PLACE, OUTPUT
from modernize.dialects.table import Assumption, Dialect, keep, split3

# its own name, where attention is a module around it
MODULE = ATTENTION + "{|mha.|attn.|attention.|multihead_attn.|multihead_attention.}"

COURSE_MHA = Dialect(
    name="course-mha",
    title="course models with nn.MultiheadAttention",
    rules=(
        *AROUND,
        split3(
            MODULE + "in_proj_weight",
            "h.{i}.attn.q.weight",
            "h.{i}.attn.k.weight",
            "h.{i}.attn.v.weight",
        ),
        split3(
            MODULE + "in_proj_bias",
            "h.{i}.attn.q.bias",
            "h.{i}.attn.k.bias",
            "h.{i}.attn.v.bias",
            optional=True,
        ),
        keep(MODULE + OUTPUT + ".{p}", "h.{i}.attn.o.{p}"),
    ),
    loose=True,
    assumptions=(
        NORM_PLACE,
        Assumption(field="attn_scale", value="head"),
        EPS,
    ),
)
