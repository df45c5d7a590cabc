"""BioGPT: positions counted from two, token embeddings multiplied by √width where they come in."""

from modernize.dialects.ops import AFTER_TWO, SCALE_INPUT
from modernize.dialects.table import PRE, Assumption, Dialect, Rule, keep

BIOGPT = Dialect(
    name="biogpt",
    title="BioGPT in Hugging Face transformers",
    rules=(
        Rule("[biogpt.]embed_tokens.weight", ("wte.weight", "head.weight"), SCALE_INPUT),
        Rule("[biogpt.]embed_positions.weight", ("wpe.weight",), AFTER_TWO),
        keep("[biogpt.]layers.{i}.self_attn_layer_norm.{p}", "h.{i}.ln_1.{p}"),
        keep("[biogpt.]layers.{i}.self_attn.q_proj.{p}", "h.{i}.attn.q.{p}"),
        keep("[biogpt.]layers.{i}.self_attn.k_proj.{p}", "h.{i}.attn.k.{p}"),
        keep("[biogpt.]layers.{i}.self_attn.v_proj.{p}", "h.{i}.attn.v.{p}"),
        keep("[biogpt.]layers.{i}.self_attn.out_proj.{p}", "h.{i}.attn.o.{p}"),
        keep("[biogpt.]layers.{i}.final_layer_norm.{p}", "h.{i}.ln_2.{p}"),
        keep("[biogpt.]layers.{i}.fc1.{p}", "h.{i}.mlp.up.{p}"),
        keep("[biogpt.]layers.{i}.fc2.{p}", "h.{i}.mlp.down.{p}"),
        keep("[biogpt.]layer_norm.{p}", "ln_f.{p}"),
        keep("output_projection.{p}", "head.{p}", optional=True),
    ),
    tied=(False,),
    model_types=("biogpt",),
    must_be=(("scale_embedding", True),),
    assumptions=(
        PRE,
        Assumption(field="activation", value="gelu"),
        Assumption(field="attn_scale", value="head"),
        Assumption(field="norm_eps", value=1e-5, certain=True),  # its layer_norm_eps is not used
    ),
)
