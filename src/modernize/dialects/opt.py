"""OPT: norms before, ReLU, positions counted from two."""

from modernize.dialects.ops import AFTER_TWO
from modernize.dialects.table import PRE, Assumption, Dialect, Rule, keep

OPT = Dialect(
    name="opt",
    title="OPT in Hugging Face transformers (all sizes but 350m, whose norms stand behind)",
    rules=(
        keep("[model.]decoder.embed_tokens.weight", "wte.weight"),
        Rule("[model.]decoder.embed_positions.weight", ("wpe.weight",), AFTER_TWO),
        keep("[model.]decoder.layers.{i}.self_attn_layer_norm.{p}", "h.{i}.ln_1.{p}"),
        keep("[model.]decoder.layers.{i}.self_attn.q_proj.{p}", "h.{i}.attn.q.{p}"),
        keep("[model.]decoder.layers.{i}.self_attn.k_proj.{p}", "h.{i}.attn.k.{p}"),
        keep("[model.]decoder.layers.{i}.self_attn.v_proj.{p}", "h.{i}.attn.v.{p}"),
        keep("[model.]decoder.layers.{i}.self_attn.out_proj.{p}", "h.{i}.attn.o.{p}"),
        keep("[model.]decoder.layers.{i}.final_layer_norm.{p}", "h.{i}.ln_2.{p}"),
        keep("[model.]decoder.layers.{i}.fc1.{p}", "h.{i}.mlp.up.{p}"),
        keep("[model.]decoder.layers.{i}.fc2.{p}", "h.{i}.mlp.down.{p}"),
        keep("[model.]decoder.final_layer_norm.{p}", "ln_f.{p}"),
        keep("lm_head.{p}", "head.{p}", optional=True),
    ),
    model_types=("opt",),
    must_be=(("do_layer_norm_before", True), ("_remove_final_layer_norm", False)),
    assumptions=(
        PRE,
        Assumption(field="activation", value="relu"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
