"""The exact moves: gains, shifts, means and the mean position go into the neighbouring weights.

After all of them, and before positions and biases are dropped, `r(x) = x / √(mean x² + eps)` in the place of LayerNorm
gives the old model's logits. Each function takes a canonical State (matrices `(out, in)`) and gives a new one.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from modernize.rewrite.plan import READERS
from modernize.spec import GPTSpec, State, names_of

# who writes into the residual stream, besides the embeddings
WRITERS = ("o", "down")


def untie_head(state: State, spec: GPTSpec) -> State:
    """The head gets the embedding's matrix as its own: `head (vocab, d) = wte`. The same logits."""
    return {**state, "head.weight": state["wte.weight"].clone()}


def fold_shift(state: State, spec: GPTSpec) -> State:
    """A norm's shift β goes into its readers' biases: `W(g⊙n + β) + b = W(g⊙n) + (b + Wβ)`.

    A tied head gets a bias too: `wte·β_f`, (vocab,).
    """
    new = dict(state)
    for norm, reader, weight in _read(state, spec, final=True):
        shift = state.get(f"{norm}.bias")
        if shift is not None:
            new[f"{reader}.bias"] = weight @ shift + new.get(f"{reader}.bias", 0)
    return {name: t for name, t in new.items() if not _is_norm_bias(name)}


def fold_gain(state: State, spec: GPTSpec) -> State:
    """A norm's gain g goes into its readers: `W(g⊙n) = (W·diag g) n`, and the gain is one.

    The final norm keeps its gain where the head is tied: the matrix is the embedding's too. Raises ValueError for a
    State with shifts, which have to be folded with the matrices as they were.
    """
    if any(_is_norm_bias(name) for name in state):
        raise ValueError("fold_shift comes before fold_gain")
    new = dict(state)
    for norm, reader, weight in _read(state, spec, final="head.weight" in state):
        gain = state[f"{norm}.weight"]
        new[f"{reader}.weight"] = weight * gain  # (out, in) · (in,)
        new[f"{norm}.weight"] = torch.ones_like(gain)
    return new


def centre(state: State, spec: GPTSpec) -> State:
    """Every writer of the residual stream loses its mean over the d axis: rows of wte and wpe, columns of o and down,
    and their biases. The stream then has mean zero, and r(x) = n(x). LayerNorm took it off itself.

    A tied head reads the centred rows as well; `tie.tie_cost` estimates what that costs.
    """
    new = dict(state)
    for table in ("wte.weight", "wpe.weight"):
        new[table] = state[table] - state[table].mean(1, keepdim=True)  # (rows, d)
    for part in WRITERS:
        for name in names_of(part, spec.n_layer):
            weight = state[f"{name}.weight"]
            new[f"{name}.weight"] = weight - weight.mean(0, keepdim=True)  # (d, in)
            if f"{name}.bias" in state:
                new[f"{name}.bias"] = state[f"{name}.bias"] - state[f"{name}.bias"].mean()  # (d,)
    return new


def fold_mean_position(state: State, spec: GPTSpec) -> State:
    """The mean position moves into every token: `wte + m` and `wpe − m`, m (d,) the mean over positions.

    The same stream. A tied head sees `m·z` added to all logits of a position alike, which no softmax notices.
    """
    mean = state["wpe.weight"].mean(0)
    return {**state, "wte.weight": state["wte.weight"] + mean, "wpe.weight": state["wpe.weight"] - mean}


def fold_value_bias(state: State, spec: GPTSpec) -> State:
    """`bo ← bo + Wo·bv`: attention weights sum to one, so v's bias passes through unchanged; v has none afterwards."""
    new = dict(state)
    for v, o in zip(names_of("v", spec.n_layer), names_of("o", spec.n_layer), strict=True):
        bias = new.pop(f"{v}.bias", None)
        if bias is not None:
            new[f"{o}.bias"] = state[f"{o}.weight"] @ bias + new.get(f"{o}.bias", 0)
    return new


def _read(state: State, spec: GPTSpec, *, final: bool) -> Iterator[tuple[str, str, Tensor]]:
    """(norm, reader, the reader's matrix (out, in)) for every norm and reader; with `final`, the head's too."""
    for part in ("ln_1", "ln_2"):
        for i, norm in enumerate(names_of(part, spec.n_layer)):
            for reader in READERS[part]:
                name = names_of(reader, spec.n_layer)[i]
                yield norm, name, state[f"{name}.weight"]
    if final:
        yield "ln_f", "head", state.get("head.weight", state["wte.weight"])


def _is_norm_bias(name: str) -> bool:
    part = name.removesuffix(".bias")
    return part != name and part.rpartition(".")[2] in ("ln_1", "ln_2", "ln_f")
