"""Relatives of the lecture whose heads are put side by side and not projected."""

from modernize.dialects.course_heads import ASSUMPTIONS, HEADS
from modernize.dialects.spellings import AROUND, ATTENTION, EACH, VALUE
from modernize.dialects.table import Dialect, stack_heads_alone

COURSE_HEADS_ALONE = Dialect(
    name="course-heads-alone",
    title="course models with a matrix for each head and no output projection",
    rules=(
        *AROUND,
        *HEADS,
        stack_heads_alone(ATTENTION + EACH + VALUE + ".{p}", "h.{i}.attn.v.{p}", "h.{i}.attn.o.{p}"),
    ),
    assumptions=ASSUMPTIONS,
    loose=True,
)
