"""Layouts whose tensors are stored in another way, against forward passes that are written as their programs do it."""

import pytest
import tiny
import torch
from torch import nn
from torch.nn import functional as F

from modernize.errors import MissingFact, UnknownLayout
from modernize.facts import Facts
from modernize.loading import load

WIDTH, HEADS, CONTEXT, VOCAB = 32, 4, 16, 61


class Attention(nn.MultiheadAttention):
    """torch's own, causal, as a layer of one argument."""

    def __init__(self):
        super().__init__(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return super().forward(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]


class Nested(nn.Module):
    """torch's own in a module around it."""

    def __init__(self):
        super().__init__()
        self.mha = Attention()

    def forward(self, x):
        return self.mha(x)


class Heads(nn.Module):
    """The lecture's heads, put side by side and not projected."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(
            nn.ModuleDict({n: nn.Linear(WIDTH, WIDTH // HEADS, bias=n == "value") for n in ("key", "query", "value")})
            for _ in range(HEADS)
        )

    def forward(self, x):
        parts = []
        for head in self.heads:
            scores = head["query"](x) @ head["key"](x).transpose(-2, -1) * (WIDTH // HEADS) ** -0.5
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
            parts.append(scores.softmax(-1) @ head["value"](x))
        return torch.cat(parts, -1)


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.ln1, self.ln2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Course(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(attention) for _ in range(2))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.token_embedding(ids) + self.position_embedding.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class BarePositions(nn.Module):
    """A course model or an encoder whose table of positions is a parameter of its own, with a first axis or without."""

    def __init__(self, inner, name, shape):
        super().__init__()
        self.inner, self.name = inner, name
        for gone in ("position_embedding", "pos_emb"):
            if hasattr(inner, gone):
                delattr(inner, gone)
        setattr(inner, name, nn.Parameter(torch.zeros(shape)))

    def forward(self, ids):
        table = getattr(self.inner, self.name)
        x = (self.inner.token_embedding if hasattr(self.inner, "token_embedding") else self.inner.tok_emb)(ids)
        x = x + (table[:, : ids.shape[1]] if table.ndim == 3 else table[: ids.shape[1]])
        if isinstance(self.inner, Encoder):
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=x.dtype)
            return self.inner.lm_head(self.inner.encoder(x, mask=mask, is_causal=True))
        for block in self.inner.blocks:
            x = block(x)
        return self.inner.head(self.inner.ln_f(x))


class Encoder(nn.Module):
    """Around torch's own encoder, norms before."""

    def __init__(self):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, activation="relu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok_emb(ids) + self.pos_emb.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=x.dtype)
        return self.lm_head(self.encoder(x, mask=mask, is_causal=True))


def saved(model, path):
    """Random weights that matter, saved bare."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.double().eval().parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + 0.2 * noise if parameter.ndim == 1 else noise / parameter.shape[-1] ** 0.5)
    torch.save(model.state_dict(), path)
    return path


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: Course(Attention), {"n_head": HEADS, "activation": "gelu"}),
        (lambda: Course(Nested), {"n_head": HEADS, "activation": "gelu"}),
        (lambda: Course(Heads), {"activation": "gelu"}),
        (Encoder, {"n_head": HEADS, "activation": "relu", "norm": "pre"}),
    ],
    ids=["nn.MultiheadAttention", "nested in a module", "heads that are not projected", "nn.TransformerEncoder"],
)
def test_a_course_model_gives_its_own_logits(tmp_path, make, facts):
    model = make()
    path = saved(model, tmp_path / "model.pt")
    ids = torch.randint(0, VOCAB, (3, CONTEXT), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(load(path, facts=Facts(**facts))(ids), model(ids), rtol=0, atol=1e-9)


class Causal(nn.Module):
    """Query, key and value apart or in one matrix."""

    def __init__(self, *, fused):
        super().__init__()
        names = {"qkv": 3 * WIDTH} if fused else dict.fromkeys(("q_proj", "k_proj", "v_proj"), WIDTH)
        for name, rows in names.items():
            setattr(self, name, nn.Linear(WIDTH, rows))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1) if hasattr(self, "qkv") else [getattr(self, f"{n}_proj")(x) for n in "qkv"]
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        scores = (q @ k.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("shape", [(CONTEXT, WIDTH), (1, CONTEXT, WIDTH)], ids=["(T, C)", "(1, T, C)"])
@pytest.mark.parametrize("name", ["pos_emb", "pos_embedding", "position_embedding"])
@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: Course(lambda: Causal(fused=False)), {"n_head": HEADS, "activation": "gelu"}),
        (lambda: Course(lambda: Causal(fused=True)), {"n_head": HEADS, "activation": "gelu"}),
        (lambda: Course(Attention), {"n_head": HEADS, "activation": "gelu"}),
        (lambda: Course(Heads), {"activation": "gelu"}),
        (Encoder, {"n_head": HEADS, "activation": "relu", "norm": "pre"}),
    ],
    ids=["apart", "fused", "nn.MultiheadAttention", "heads", "nn.TransformerEncoder"],
)
def test_positions_may_be_a_bare_parameter(tmp_path, make, facts, name, shape):
    model = BarePositions(make(), name, shape)
    path = saved(model, tmp_path / "model.pt")
    torch.save({n.removeprefix("inner."): t for n, t in torch.load(path).items()}, path)
    ids = torch.randint(0, VOCAB, (3, CONTEXT), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(load(path, facts=Facts(**facts))(ids), model(ids), rtol=0, atol=1e-9)


def test_where_norms_stand_is_asked_for(tmp_path):
    path, facts = saved(Encoder(), tmp_path / "model.pt"), {"n_head": HEADS, "activation": "relu"}
    with pytest.raises(MissingFact, match="norm"):
        load(path, facts=Facts(**facts))
    with pytest.raises(UnknownLayout, match="post-norm"):
        load(path, facts=Facts(**facts, norm="post"))
    torch.save({"state_dict": torch.load(path), "config": {"norm_first": False}}, path)
    with pytest.raises(UnknownLayout, match="post-norm"):
        load(path, facts=Facts(**facts))


def test_transformer_lens_gives_its_own_logits(tmp_path):
    spec = tiny.spec(tied=False, activation="gelu_tanh", n_inner=48)
    random = torch.Generator().manual_seed(2)
    size, inner = WIDTH // HEADS, 48

    def noise(*shape, around=0.0):
        return (
            around + torch.randn(shape, generator=random, dtype=torch.float64) / (shape[-1] if shape[1:] else 9) ** 0.5
        )

    w = {"embed.W_E": noise(VOCAB, WIDTH), "pos_embed.W_pos": noise(CONTEXT, WIDTH)}
    w |= {"ln_final.w": noise(WIDTH, around=1), "ln_final.b": noise(WIDTH)}
    w |= {"unembed.W_U": noise(WIDTH, VOCAB), "unembed.b_U": noise(VOCAB)}
    for i in range(2):
        for n in (1, 2):
            w |= {f"blocks.{i}.ln{n}.w": noise(WIDTH, around=1), f"blocks.{i}.ln{n}.b": noise(WIDTH)}
        for part in "QKV":
            w |= {
                f"blocks.{i}.attn.W_{part}": noise(HEADS, WIDTH, size),
                f"blocks.{i}.attn.b_{part}": noise(HEADS, size),
            }
        w |= {f"blocks.{i}.attn.W_O": noise(HEADS, size, WIDTH), f"blocks.{i}.attn.b_O": noise(WIDTH)}
        w |= {f"blocks.{i}.mlp.W_in": noise(WIDTH, inner), f"blocks.{i}.mlp.b_in": noise(inner)}
        w |= {f"blocks.{i}.mlp.W_out": noise(inner, WIDTH), f"blocks.{i}.mlp.b_out": noise(WIDTH)}
        w |= {
            f"blocks.{i}.attn.mask": torch.ones(CONTEXT, CONTEXT).tril().bool(),
            f"blocks.{i}.attn.IGNORE": torch.tensor(-1e9),
        }
    torch.save(w, tmp_path / "model.pt")
    ids = tiny.ids(spec)

    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), w[f"{name}.w"], w[f"{name}.b"])

    x = w["embed.W_E"][ids] + w["pos_embed.W_pos"]
    for i in range(2):
        b = f"blocks.{i}."
        y = norm(x, b + "ln1")
        q, k, v = (
            torch.einsum("btd,hde->bhte", y, w[f"{b}attn.W_{p}"]) + w[f"{b}attn.b_{p}"][None, :, None] for p in "QKV"
        )
        scores = q @ k.transpose(-2, -1) / size**0.5
        z = scores.masked_fill(torch.ones(CONTEXT, CONTEXT).triu(1).bool(), -torch.inf).softmax(-1) @ v
        x = x + torch.einsum("bhte,hed->btd", z, w[f"{b}attn.W_O"]) + w[f"{b}attn.b_O"]
        y = F.gelu(norm(x, b + "ln2") @ w[b + "mlp.W_in"] + w[b + "mlp.b_in"], approximate="tanh")
        x = x + y @ w[b + "mlp.W_out"] + w[b + "mlp.b_out"]
    wanted = norm(x, "ln_final") @ w["unembed.W_U"] + w["unembed.b_U"]
    torch.testing.assert_close(load(tmp_path / "model.pt")(ids), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("gone", "said"), [("mlp", "MLP"), ("ln1", "LayerNorm")])
def test_a_transformer_lens_model_without_a_part_is_refused_by_name(tmp_path, gone, said):
    spec, dialect = tiny.spec(tied=False), tiny.dialect("transformer-lens")
    keys = tiny.as_dialect(tiny.jittered(spec), spec, dialect)
    torch.save({k: v for k, v in keys.items() if f".{gone}." not in k}, tmp_path / "model.pt")
    with pytest.raises(UnknownLayout, match=said):
        load(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("names", "other"),
    [(("tok_emb", "pos_emb"), ("token_embeddings", "position_embeddings")), (("lm_head",), ("out_head",))],
)
def test_the_encoder_knows_the_spellings_of_courses(tmp_path, names, other):
    path = saved(Encoder(), tmp_path / "model.pt")
    keys = torch.load(path, weights_only=True)
    for old, new in zip(names, other, strict=True):
        keys = {name.replace(old, new): tensor for name, tensor in keys.items()}
    torch.save(keys, path)
    load(path, facts=Facts(n_head=HEADS, activation="relu", norm="pre"))
