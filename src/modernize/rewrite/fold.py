"""The exact moves: gains, shifts, means and the mean position go into the neighbouring weights.

After all of them, and before positions and biases are dropped, `r(x) = x / √(mean x² + eps)` in the place of LayerNorm
gives the old model's logits. Each function takes a canonical State (matrices `(out, in)`) and gives a new one.

A State may hold a part of a model: what is not there is left alone. It may even hold some rows of wte, of a head or of
a matrix that reads a norm, with those of their bias: each row comes out as it would beside all others. So do rows of a
matrix that writes into the stream, with its whole bias, beside its means from `column_means` under `.mean`; `wpe.mean`,
from `mean_position`, may stand for wpe where only wte is wanted. `fold_value_bias` needs whole matrices.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from modernize.rewrite.plan import NORM_OF, WRITERS, beside, part_of
from modernize.spec import NORMS, GPTSpec, State

TABLES = ("wte.weight", "wpe.weight")


def untie_head(state: State, spec: GPTSpec) -> State:
    """The head gets the embedding's matrix as its own: `head (vocab, d) = wte`. The same logits."""
    return state | ({"head.weight": state["wte.weight"]} if "wte.weight" in state else {})


def fold_shift(state: State, spec: GPTSpec) -> State:
    """A norm's shift β goes into its readers' biases: `W(g⊙n + β) + b = W(g⊙n) + (b + Wβ)`.

    A tied head gets a bias too: `wte·β_f`, (vocab,).
    """
    new = dict(state)
    for reader, weight in _readers(state, final=True):
        shift = state.get(beside(reader, NORM_OF[part_of(reader)], "bias"))
        if shift is not None:
            bias = reader.replace(".weight", ".bias")
            new[bias] = weight @ shift + new.get(bias, 0)
    return {name: t for name, t in new.items() if not _is_norm_bias(name)}


def fold_gain(state: State, spec: GPTSpec) -> State:
    """A norm's gain g goes into its readers: `W(g⊙n) = (W·diag g) n`, and the gain is one.

    The final norm keeps its gain where the head is tied: the matrix is the embedding's too. Raises ValueError for a
    State with shifts, which have to be folded with the matrices as they were.
    """
    if any(_is_norm_bias(name) for name in state):
        raise ValueError("fold_shift comes before fold_gain")
    new = dict(state)
    for reader, weight in _readers(state, final="head.weight" in state):
        norm = beside(reader, NORM_OF[part_of(reader)], "weight")
        if norm in state:
            new[reader] = weight * state[norm]  # (out, in) · (in,)
            new[norm] = torch.ones_like(state[norm])
    return new


def centre(state: State, spec: GPTSpec) -> State:
    """Every writer of the residual stream loses its mean over the d axis: rows of wte and wpe, columns of o and down,
    and their biases. The stream then has mean zero, and r(x) = n(x). LayerNorm took it off itself.

    A tied head reads the centred rows as well; `tie.tie_cost` estimates what that costs.
    """
    new = dict(state)
    for name, tensor in state.items():
        if name in TABLES:
            new[name] = tensor - tensor.mean(1, keepdim=True)  # (rows, d)
        elif part_of(name) in WRITERS and not name.endswith(".mean"):
            mean = state.get(name.replace(".weight", ".mean")) if name.endswith(".weight") else None
            new[name] = tensor - (tensor.mean(0, keepdim=True) if mean is None else mean)  # (d, in), and biases (d,)
    return new


def fold_mean_position(state: State, spec: GPTSpec) -> State:
    """The mean position moves into every token: `wte + m` and `wpe − m`, m (d,) the mean over positions.

    The same stream. A tied head sees `m·z` added to all logits of a position alike, which no softmax notices.
    """
    new, positions = dict(state), state.get("wpe.weight")
    mean = state.get("wpe.mean") if positions is None else positions.mean(0)
    if mean is not None and "wte.weight" in state:
        new["wte.weight"] = state["wte.weight"] + mean
    if mean is not None and positions is not None:
        new["wpe.weight"] = positions - mean
    return new


def column_means(weight: Tensor, columns: int) -> Tensor:
    """What `centre` takes off each column (1, in) of a matrix (d, in), so many columns in float64 at once."""
    return torch.cat([part.double().mean(0, keepdim=True) for part in torch.split(weight, columns, 1)], 1)


def mean_position(wpe: Tensor, spec: GPTSpec) -> Tensor:
    """What `fold_mean_position` moves into every token (d,), of the table (positions, d) as it is before all moves."""
    return centre({"wpe.weight": wpe}, spec)["wpe.weight"].mean(0)


def fold_value_bias(state: State, spec: GPTSpec) -> State:
    """`bo ← bo + Wo·bv`: attention weights sum to one, so v's bias passes through unchanged; v has none afterwards."""
    new = dict(state)
    for v in [name for name in state if name.endswith(".v.bias")]:
        bias, o = new.pop(v), beside(v, "o", "bias")
        weight = state.get(beside(v, "o", "weight"))
        if weight is not None:
            new[o] = weight @ bias + new.get(o, 0)
    return new


def _readers(state: State, *, final: bool) -> Iterator[tuple[str, Tensor]]:
    """Name and matrix (out, in) of all that read a norm; with `final`, a head's too, which may be the embedding's."""
    for name, tensor in state.items():
        if name.endswith(".weight") and part_of(name) in NORM_OF and name != "head.weight":
            yield name, tensor
    head = state.get("head.weight", state.get("wte.weight"))
    if final and head is not None:
        yield "head.weight", head


def _is_norm_bias(name: str) -> bool:
    return name.endswith(".bias") and part_of(name) in NORMS
