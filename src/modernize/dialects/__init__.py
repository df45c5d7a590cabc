"""Recognise, first half: the dialects, each a table of rows. One line here adds one.

table.py   Rule, Dialect, Assumption, and `cover`: which rows claim which keys
ops.py     what a row does to the tensors it claims
setting_names.py  under which names settings keep the facts of a model
*.py       one file of rows per dialect
"""

from modernize.dialects.gpt2 import GPT2
from modernize.dialects.lecture import LECTURE
from modernize.dialects.mingpt import MINGPT
from modernize.dialects.nanogpt import NANOGPT
from modernize.dialects.nanogpt_gamma import NANOGPT_GAMMA
from modernize.dialects.table import Assumption, Cover, Dialect, Rule, Step, cover
from modernize.dialects.tok_emb import TOK_EMB

DIALECTS: tuple[Dialect, ...] = (NANOGPT, MINGPT, GPT2, NANOGPT_GAMMA, LECTURE, TOK_EMB)

__all__ = ["DIALECTS", "Assumption", "Cover", "Dialect", "Rule", "Step", "cover"]
