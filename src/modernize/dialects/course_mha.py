"""Course models that use torch's nn.MultiheadAttention in blocks of their own."""

from modernize.dialects.spellings import AROUND, ATTENTION, PROJECTION
from modernize.dialects.table import Assumption, Dialect, split3

COURSE_MHA = Dialect(
    name="course-mha",
    title="course models with nn.MultiheadAttention",
    rules=(
        *AROUND,
        split3(
            ATTENTION + "{|mha.|attn.|attention.}in_proj_weight",
            "h.{i}.attn.q.weight",
            "h.{i}.attn.k.weight",
            "h.{i}.attn.v.weight",
        ),
        split3(
            ATTENTION + "{|mha.|attn.|attention.}in_proj_bias",
            "h.{i}.attn.q.bias",
            "h.{i}.attn.k.bias",
            "h.{i}.attn.v.bias",
            optional=True,
        ),
        PROJECTION,
    ),
    loose=True,
    assumptions=(
        Assumption(field="norm", value="pre", doubt="the names don't say whether norms stand before or behind: post"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
