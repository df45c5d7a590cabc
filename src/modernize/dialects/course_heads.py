"""Relatives of the lecture: one small matrix per head, under any of the usual names."""

from modernize.dialects.spellings import AROUND, ATTENTION, EACH, EPS, KEY, MASK, NORM_PLACE, PROJECTION, QUERY, VALUE
from modernize.dialects.table import Assumption, Dialect, drop, stack_heads

HEADS = (
    drop(ATTENTION + EACH + MASK),
    stack_heads(ATTENTION + EACH + QUERY + ".{p}", "h.{i}.attn.q.{p}"),
    stack_heads(ATTENTION + EACH + KEY + ".{p}", "h.{i}.attn.k.{p}"),
)
ASSUMPTIONS = (
    NORM_PLACE,
    Assumption(field="activation", value="relu", doubt="the lecture has relu, its relatives also gelu"),
    Assumption(field="attn_scale", value="head", doubt="many copies divide the scores by √width instead: embd"),
    EPS,
)

COURSE_HEADS = Dialect(
    name="course-heads",
    title="course models with a matrix for each head",
    rules=(
        *AROUND,
        *HEADS,
        stack_heads(ATTENTION + EACH + VALUE + ".{p}", "h.{i}.attn.v.{p}"),
        PROJECTION,
    ),
    assumptions=ASSUMPTIONS,
    loose=True,
)
