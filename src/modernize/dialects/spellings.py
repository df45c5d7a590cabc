"""How courses spell the parts of a GPT: pieces of templates, the rows that their layouts share, and what names hide."""

from modernize.dialects.table import Assumption, Rule, drop, keep

BLOCK = "{blocks|layers|transformer_blocks|trf_blocks|decoder_blocks|h}.{i}."
ATTENTION = BLOCK + "{attn|attention|att|mha|sa|self_attn|self_attention|multi_head_attention|sa_head|sa_heads}."
QUERY = "{query|q|wq|W_q|W_Q|q_proj|W_query|to_q}"
KEY = "{key|k|wk|W_k|W_K|k_proj|W_key|to_k}"
VALUE = "{value|v|wv|W_v|W_V|v_proj|W_value|to_v}"
OUTPUT = "{proj|c_proj|projection|out_proj|o_proj|out|wo|W_o|W_O|output|fc_out|to_out}"
MASK = "{mask|tril|causal_mask}"
_MLP = BLOCK + "{mlp|ff|ffn|ffwd|feed_forward|feedforward}.{net.|layers.|network.|}"
GAIN, SHIFT = "{weight|scale|gamma}", "{bias|shift|beta}"
_NORM_1 = BLOCK + "{ln1|ln_1|norm1|norm_1|layer_norm1|layer_norm_1|layernorm1|ln_attn|attn_norm}."
_NORM_2 = BLOCK + "{ln2|ln_2|norm2|norm_2|layer_norm2|layer_norm_2|layernorm2|ln_mlp|ffn_norm|mlp_norm}."
NORM_F = "{ln_f|ln|final_norm|norm|norm_f|final_ln|ln_final|layer_norm|final_layer_norm}."
_TOKENS = "{token_embedding_table|token_embedding|token_embeddings|token_emb|tok_emb|tok_embed|embedding|embed|wte}"
_POSITIONS = (
    "{position_embedding_table|position_embedding|position_embeddings|positional_embedding|pos_embedding|pos_emb"
    "|pos_embed|wpe}"
)

EMBEDDINGS: tuple[Rule, ...] = (
    keep(_TOKENS + ".weight", "wte.weight"),
    keep(_POSITIONS + ".weight", "wpe.weight"),
    drop(MASK),
)
HEAD = keep("{lm_head|head|out_head|output|output_layer|fc_out|unembed|proj_out}.{p}", "head.{p}", optional=True)
AROUND: tuple[Rule, ...] = (
    *EMBEDDINGS,
    drop(ATTENTION + MASK),
    drop(ATTENTION + "bias"),
    keep(_NORM_1 + GAIN, "h.{i}.ln_1.weight"),
    keep(_NORM_1 + SHIFT, "h.{i}.ln_1.bias", optional=True),
    keep(_NORM_2 + GAIN, "h.{i}.ln_2.weight"),
    keep(_NORM_2 + SHIFT, "h.{i}.ln_2.bias", optional=True),
    keep(_MLP + "{0|fc1|c_fc|linear1|fc_in|up|w1}.{p}", "h.{i}.mlp.up.{p}"),
    keep(_MLP + "{2|3|fc2|c_proj|linear2|fc_out|down|w2}.{p}", "h.{i}.mlp.down.{p}"),
    keep(NORM_F + GAIN, "ln_f.weight"),
    keep(NORM_F + SHIFT, "ln_f.bias", optional=True),
    HEAD,
)
PROJECTION = keep(ATTENTION + OUTPUT + ".{p}", "h.{i}.attn.o.{p}")

NORM_PLACE = Assumption(
    field="norm", value="pre", doubt="the names don't say whether norms stand before or behind: post"
)
EPS = Assumption(field="norm_eps", value=1e-5)
