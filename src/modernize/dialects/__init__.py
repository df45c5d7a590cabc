"""Recognise, first half: the dialects, each a table of rows. One line here adds one.

table.py   Rule, Dialect, Assumption, and `cover`: which rows claim which keys
ops.py     what a row does to the tensors it claims
spellings.py   how courses spell the parts of a model
setting_names.py  under which names settings keep the facts of a model
*.py       one file of rows per dialect
"""

from modernize.dialects.bigcode import BIGCODE
from modernize.dialects.biogpt import BIOGPT
from modernize.dialects.book import BOOK
from modernize.dialects.book_fused import BOOK_FUSED
from modernize.dialects.course_apart import COURSE_APART
from modernize.dialects.course_fused import COURSE_FUSED
from modernize.dialects.course_heads import COURSE_HEADS
from modernize.dialects.course_heads_alone import COURSE_HEADS_ALONE
from modernize.dialects.course_mha import COURSE_MHA
from modernize.dialects.gpt2 import GPT2
from modernize.dialects.lecture import LECTURE
from modernize.dialects.mingpt import MINGPT
from modernize.dialects.mingpt_2020 import MINGPT_2020
from modernize.dialects.nanogpt import NANOGPT
from modernize.dialects.nanogpt_gamma import NANOGPT_GAMMA
from modernize.dialects.opt import OPT
from modernize.dialects.table import Assumption, Cover, Dialect, Rule, Step, any_of, cover
from modernize.dialects.tok_emb import TOK_EMB
from modernize.dialects.torch_encoder import TORCH_ENCODER
from modernize.dialects.transformer_lens import TRANSFORMER_LENS

DIALECTS: tuple[Dialect, ...] = (
    NANOGPT,
    MINGPT,
    GPT2,
    NANOGPT_GAMMA,
    LECTURE,
    TOK_EMB,
    MINGPT_2020,
    BOOK,
    BOOK_FUSED,
    BIGCODE,
    OPT,
    BIOGPT,
    TRANSFORMER_LENS,
    TORCH_ENCODER,
    COURSE_HEADS,
    COURSE_HEADS_ALONE,
    COURSE_APART,
    COURSE_FUSED,
    COURSE_MHA,
)

__all__ = ["DIALECTS", "Assumption", "Cover", "Dialect", "Rule", "Step", "any_of", "cover"]
