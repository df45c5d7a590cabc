"""Course models with query, key and value in one matrix, under any of the usual names."""

from modernize.dialects.spellings import AROUND, ATTENTION, EPS, NORM_PLACE, PROJECTION, QKV
from modernize.dialects.table import Assumption, Dialect, split3

COURSE_FUSED = Dialect(
    name="course-fused",
    title="course models with query, key and value in one matrix",
    rules=(
        *AROUND,
        split3(
            ATTENTION + QKV + ".{p}",
            "h.{i}.attn.q.{p}",
            "h.{i}.attn.k.{p}",
            "h.{i}.attn.v.{p}",
        ),
        PROJECTION,
    ),
    loose=True,
    doubts=(
        "query, key and value are taken to lie one behind the other in their matrix; some courses interleave them, head"
        " by head, and then what comes out predicts badly",
    ),
    assumptions=(
        NORM_PLACE,
        Assumption(field="attn_scale", value="head", doubt="some courses divide the scores by √width instead: embd"),
        EPS,
    ),
)
