"""The video lecture "Let's build GPT": one small matrix per head, ReLU, a head with a bias."""

from modernize.dialects.table import PRE, Assumption, Dialect, drop, keep, stack_heads

LECTURE = Dialect(
    name="lecture",
    title='the lecture "Let\'s build GPT" (ng-video-lecture) and its copies',
    rules=(
        keep("token_embedding_table.weight", "wte.weight"),
        keep("position_embedding_table.weight", "wpe.weight"),
        drop("blocks.{i}.sa.heads.{j}.tril"),  # the causal mask
        stack_heads("blocks.{i}.sa.heads.{j}.query.{p}", "h.{i}.attn.q.{p}"),
        stack_heads("blocks.{i}.sa.heads.{j}.key.{p}", "h.{i}.attn.k.{p}"),
        stack_heads("blocks.{i}.sa.heads.{j}.value.{p}", "h.{i}.attn.v.{p}"),
        keep("blocks.{i}.sa.proj.{p}", "h.{i}.attn.o.{p}"),
        keep("blocks.{i}.ffwd.net.0.{p}", "h.{i}.mlp.up.{p}"),
        keep("blocks.{i}.ffwd.net.2.{p}", "h.{i}.mlp.down.{p}"),
        keep("blocks.{i}.ln1.{p}", "h.{i}.ln_1.{p}"),
        keep("blocks.{i}.ln2.{p}", "h.{i}.ln_2.{p}"),
        keep("ln_f.{p}", "ln_f.{p}"),
        keep("lm_head.{p}", "head.{p}"),
    ),
    assumptions=(
        PRE,
        Assumption(field="activation", value="relu", doubt="copies of the lecture also use gelu"),
        Assumption(field="attn_scale", value="head", doubt="many copies divide the scores by √width instead: embd"),
        Assumption(field="norm_eps", value=1e-5),
    ),
)
