"""Course models with query, key and value apart, under any of the usual names."""

from modernize.dialects.spellings import AROUND, ATTENTION, EPS, KEY, NORM_PLACE, PROJECTION, QUERY, VALUE
from modernize.dialects.table import Assumption, Dialect, keep

COURSE_APART = Dialect(
    name="course-apart",
    title="course models with query, key and value apart",
    rules=(
        *AROUND,
        keep(ATTENTION + QUERY + ".{p}", "h.{i}.attn.q.{p}"),
        keep(ATTENTION + KEY + ".{p}", "h.{i}.attn.k.{p}"),
        keep(ATTENTION + VALUE + ".{p}", "h.{i}.attn.v.{p}"),
        PROJECTION,
    ),
    loose=True,
    assumptions=(
        NORM_PLACE,
        Assumption(field="attn_scale", value="head", doubt="some courses divide the scores by √width instead: embd"),
        EPS,
    ),
)
