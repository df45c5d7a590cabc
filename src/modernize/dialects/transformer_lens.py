"""TransformerLens: a tensor for each head, matrices stored (in, out)."""

from modernize.dialects.ops import FLATTEN, INTO_HEADS, OUT_OF_HEADS
from modernize.dialects.table import PRE, Assumption, Dialect, Rule, drop, keep, transpose

TRANSFORMER_LENS = Dialect(
    name="transformer-lens",
    title="TransformerLens (HookedTransformer)",
    rules=(
        keep("embed.W_E", "wte.weight"),
        keep("pos_embed.W_pos", "wpe.weight"),
        keep("blocks.{i}.ln1.w", "h.{i}.ln_1.weight"),
        keep("blocks.{i}.ln1.b", "h.{i}.ln_1.bias", optional=True),
        keep("blocks.{i}.ln2.w", "h.{i}.ln_2.weight"),
        keep("blocks.{i}.ln2.b", "h.{i}.ln_2.bias", optional=True),
        drop("blocks.{i}.attn.mask"),
        drop("blocks.{i}.attn.IGNORE"),
        Rule("blocks.{i}.attn.W_Q", ("h.{i}.attn.q.weight",), INTO_HEADS),
        Rule("blocks.{i}.attn.W_K", ("h.{i}.attn.k.weight",), INTO_HEADS),
        Rule("blocks.{i}.attn.W_V", ("h.{i}.attn.v.weight",), INTO_HEADS),
        Rule("blocks.{i}.attn.W_O", ("h.{i}.attn.o.weight",), OUT_OF_HEADS),
        Rule("blocks.{i}.attn.b_Q", ("h.{i}.attn.q.bias",), FLATTEN, optional=True),
        Rule("blocks.{i}.attn.b_K", ("h.{i}.attn.k.bias",), FLATTEN, optional=True),
        Rule("blocks.{i}.attn.b_V", ("h.{i}.attn.v.bias",), FLATTEN, optional=True),
        keep("blocks.{i}.attn.b_O", "h.{i}.attn.o.bias", optional=True),
        transpose("blocks.{i}.mlp.W_in", "h.{i}.mlp.up.weight"),
        keep("blocks.{i}.mlp.b_in", "h.{i}.mlp.up.bias", optional=True),
        transpose("blocks.{i}.mlp.W_out", "h.{i}.mlp.down.weight"),
        keep("blocks.{i}.mlp.b_out", "h.{i}.mlp.down.bias", optional=True),
        keep("ln_final.w", "ln_f.weight"),
        keep("ln_final.b", "ln_f.bias", optional=True),
        transpose("unembed.W_U", "head.weight"),
        keep("unembed.b_U", "head.bias", optional=True),
    ),
    tied=(False,),
    assumptions=(
        PRE,
        Assumption(field="activation", value="gelu_tanh", doubt="GPT-2 has it, others gelu or relu"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
