"""minGPT (since 2022) and makemore: nanoGPT's names, the tanh GELU, a head of its own, saved bare."""

from modernize.dialects.nanogpt import ROWS
from modernize.dialects.table import PRE, Assumption, Dialect

MINGPT = Dialect(
    name="mingpt",
    title="minGPT (karpathy/minGPT) and makemore's transformer",
    rules=ROWS,
    tied=(False,),
    assumptions=(
        PRE,
        Assumption(field="activation", value="gelu_tanh"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
