"""How courses spell the parts of a GPT: pieces of templates, the rows that their layouts share, and what names hide.

A word stands in one piece only, so that no key can be read as two parts of a model.
"""

from modernize.dialects.table import Assumption, Rule, drop, keep, squeeze

# where all but the head lie in a module of their own
_TRUNK = "{|transformer.|decoder.|backbone.|model.|gpt.}"
BLOCK = _TRUNK + "{blocks|layers|transformer_blocks|trf_blocks|decoder_blocks|decoder_layers|transformer_layers|h}.{i}."
ATTENTION = BLOCK + (
    "{attn|attention|att|mha|sa|self_attn|self_attention|multi_head_attention|multihead_attention|multi_head_attn"
    "|causal_self_attn|causal_self_attention|causal_attn|causal_attention|sa_head|sa_heads}."
)
EACH = "{heads|attention_heads|attn_heads}.{j}."
QUERY = "{query|q|queries|wq|Wq|w_q|W_q|W_Q|q_proj|query_proj|W_query|w_query|to_q|c_q|q_linear}"
KEY = "{key|k|keys|wk|Wk|w_k|W_k|W_K|k_proj|key_proj|W_key|w_key|to_k|c_k|k_linear}"
VALUE = "{value|v|values|wv|Wv|w_v|W_v|W_V|v_proj|value_proj|W_value|w_value|to_v|c_v|v_linear}"
QKV = "{qkv|c_attn|qkv_proj|in_proj|to_qkv|W_qkv|Wqkv|w_qkv|c_qkv|qkv_linear}"
OUTPUT = (
    "{proj|c_proj|projection|out_proj|o_proj|output_proj|proj_out|out|o|wo|Wo|w_o|W_o|W_O|W_out|output|fc_out|to_out"
    "|out_linear}"
)
_MLP = BLOCK + "{mlp|ff|ffn|ffwd|feed_forward|feedforward}.{net.|layers.|network.|}"
_UP = "{0|fc1|fc_1|c_fc|linear1|linear_1|lin1|fc_in|up|up_proj|w1|w_1}"
_DOWN = "{2|3|fc2|fc_2|c_proj|linear2|linear_2|lin2|fc_out|down|down_proj|w2|w_2}"
GAIN, SHIFT = "{weight|scale|gamma}", "{bias|shift|beta}"
_NORM_1 = BLOCK + (
    "{ln1|ln_1|norm1|norm_1|layer_norm1|layer_norm_1|layernorm1|ln_attn|attn_norm|attention_norm|norm_attn"
    "|input_layernorm}."
)
_NORM_2 = BLOCK + (
    "{ln2|ln_2|norm2|norm_2|layer_norm2|layer_norm_2|layernorm2|ln_mlp|ffn_norm|mlp_norm|ff_norm|ln_ff|ln_ffn|norm_mlp"
    "|norm_ff|norm_ffn|post_attention_layernorm}."
)
NORM_F = (
    "{ln_f|ln|final_norm|norm|norm_f|norm_final|final_ln|ln_final|layer_norm|final_layer_norm|final_layernorm|ln_out}."
)
_TOKENS = (
    "{token_embedding_table|token_embedding|token_embeddings|token_emb|token_embed|tok_embedding|tok_embeddings|tok_emb"
    "|tok_embed|embedding_table|embedding|embed|emb|word_embedding|word_embeddings|wte|embeddings.token"
    "|embeddings.token_embedding|embedding.token_embedding|embeddings.token_embeddings|embeddings.tok_emb|embeddings.word_embeddings}"
)
_POSITIONS = (
    "{position_embedding_table|position_embedding|position_embeddings|positional_embedding|positional_embeddings"
    "|pos_embedding_table|pos_embedding|pos_embeddings|pos_emb|pos_embed|position_emb|position_embed|positions_embed|wpe"
    "|embeddings.position|embeddings.position_embedding|embedding.position_embedding|embeddings.position_embeddings|embeddings.pos_emb}"
)
HEAD = keep(
    "{lm_head|head|out_head|output|output_layer|output_projection|out_proj|fc_out|fc|classifier|unembed|proj_out"
    "|to_logits}.{p}",
    "head.{p}",
    optional=True,
)
MASK = "{mask|tril|causal_mask}"

EMBEDDINGS: tuple[Rule, ...] = (
    keep(_TRUNK + _TOKENS + ".weight", "wte.weight"),
    squeeze(_TRUNK + _POSITIONS + "{.weight|}", "wpe.weight"),
    drop(MASK),
)
AROUND: tuple[Rule, ...] = (
    *EMBEDDINGS,
    drop(ATTENTION + MASK),
    drop(ATTENTION + "{mask_bool|attn_mask}"),
    drop(ATTENTION + "bias"),
    keep(_NORM_1 + GAIN, "h.{i}.ln_1.weight"),
    keep(_NORM_1 + SHIFT, "h.{i}.ln_1.bias", optional=True),
    keep(_NORM_2 + GAIN, "h.{i}.ln_2.weight"),
    keep(_NORM_2 + SHIFT, "h.{i}.ln_2.bias", optional=True),
    keep(_MLP + _UP + ".{p}", "h.{i}.mlp.up.{p}"),
    keep(_MLP + _DOWN + ".{p}", "h.{i}.mlp.down.{p}"),
    keep(_TRUNK + NORM_F + GAIN, "ln_f.weight"),
    keep(_TRUNK + NORM_F + SHIFT, "ln_f.bias", optional=True),
    HEAD,
)
PROJECTION = keep(ATTENTION + OUTPUT + ".{p}", "h.{i}.attn.o.{p}")

NORM_PLACE = Assumption(
    field="norm", value="pre", doubt="the names don't say whether norms stand before or behind: post"
)
EPS = Assumption(field="norm_eps", value=1e-5)
