"""Forward passes in float64, written apart from the models and sharing no code with them: numpy, loops over heads."""

import math

import numpy as np


def old_logits(state, spec, ids):
    """LayerNorm, learned positions, whatever biases the State has. ids (B, T) -> logits (B, T, vocab)."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        out = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + spec.norm_eps) * w[f"{name}.weight"]
        return out + w.get(f"{name}.bias", 0)

    w = _arrays(state)
    scale = 1 / math.sqrt(spec.head_dim if spec.attn_scale == "head" else spec.n_embd)
    return _forward(w, spec, np.asarray(ids), norm, ("ln_1", "ln_2", "ln_f"), lambda q, k: q @ k.T * scale)


def folded_logits(state, spec, ids):
    """The same with `x / √(mean x² + eps)` in the place of LayerNorm: what a folded State has to agree in."""

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.norm_eps) * w[f"{name}.weight"]

    w = _arrays(state)
    scale = 1 / math.sqrt(spec.head_dim if spec.attn_scale == "head" else spec.n_embd)
    return _forward(w, spec, np.asarray(ids), norm, ("ln_1", "ln_2", "ln_f"), lambda q, k: q @ k.T * scale)


def modern_logits(state, config, ids):
    """RMSNorm, RoPE on neighbouring pairs as a rotation matrix per position, grouped key/value heads."""

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * w[f"{name}.gain"]

    def scores(q, k):
        return _turned(q, config.rope_base) @ _turned(k, config.rope_base).T / math.sqrt(config.head_dim)

    w = _arrays(state)
    return _forward(w, config, np.asarray(ids), norm, ("norm_1", "norm_2", "norm_f"), scores)


def _turned(x, base):
    """Each row m of x (T, head_dim) times a block-diagonal rotation by m·θᵢ."""
    length, width = x.shape
    out = np.empty_like(x)
    for m in range(length):
        turn = np.zeros((width, width))
        for i in range(width // 2):
            angle = m * base ** (-2 * i / width)
            turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
                [math.cos(angle), -math.sin(angle)],
                [math.sin(angle), math.cos(angle)],
            ]
        out[m] = turn @ x[m]
    return out


def _forward(w, model, ids, norm, names, scores):
    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    size, group = model.head_dim, model.n_head // getattr(model, "n_kv_head", model.n_head)
    rows = []
    for row in ids:
        x = w["wte.weight"][row]
        if "wpe.weight" in w:
            x = x + w["wpe.weight"][: len(row)]
        for i in range(model.n_layer):
            h = norm(x, f"h.{i}.{names[0]}")
            q, k, v = (linear(h, f"h.{i}.attn.{p}") for p in "qkv")
            heads = []
            for j in range(model.n_head):
                g = j // group
                own, shared = slice(j * size, (j + 1) * size), slice(g * size, (g + 1) * size)
                s = scores(q[:, own], k[:, shared])
                s = np.where(np.tril(np.ones_like(s)) > 0, s, -np.inf)
                p = np.exp(s - s.max(-1, keepdims=True))
                heads.append(p / p.sum(-1, keepdims=True) @ v[:, shared])
            x = x + linear(np.concatenate(heads, -1), f"h.{i}.attn.o")
            hidden = _ACTIVATIONS[model.activation](linear(norm(x, f"h.{i}.{names[1]}"), f"h.{i}.mlp.up"))
            x = x + linear(hidden, f"h.{i}.mlp.down")
        head = w.get("head.weight", w["wte.weight"])
        rows.append(norm(x, names[2]) @ head.T + w.get("head.bias", 0))
    return np.stack(rows)


def _arrays(state):
    return {name: tensor.double().numpy() for name, tensor in state.items()}


_ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}
