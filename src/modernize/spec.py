"""The data that everything else is about: the facts of an old model, the configuration of a modern one, and State.

Both models are described by the same tensor names; what differs is the norms (`ln_1` with weight and bias against
`norm_1` with a gain) and the position table. All matrices are `(out, in)`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args

from modernize.choices import Activation, AttnScale, ModernActivation

if TYPE_CHECKING:
    import torch

State: TypeAlias = "dict[str, torch.Tensor]"
Shape: TypeAlias = tuple[int, ...]

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
MODERN_ACTIVATIONS: tuple[ModernActivation, ...] = get_args(ModernActivation)
ATTN_SCALES: tuple[AttnScale, ...] = get_args(AttnScale)
FLOATS = ("float16", "bfloat16", "float32", "float64")  # dtypes that weights may have
NORMS = ("ln_1", "ln_2", "ln_f")  # parts of an old model that may carry a shift
LINEARS = ("q", "k", "v", "o", "up", "down", "head")  # parts of either model that may carry a bias
HOMES = {
    "ln_1": "h.{i}.ln_1",
    "ln_2": "h.{i}.ln_2",
    "ln_f": "ln_f",
    "q": "h.{i}.attn.q",
    "k": "h.{i}.attn.k",
    "v": "h.{i}.attn.v",
    "o": "h.{i}.attn.o",
    "up": "h.{i}.mlp.up",
    "down": "h.{i}.mlp.down",
    "head": "head",
}  # where each part stands in a State, layer i


def names_of(part: str, n_layer: int) -> list[str]:
    """Names of one part in every layer, without `.weight` or `.bias`: `q` -> `h.0.attn.q`, `h.1.attn.q`, …"""
    home = HOMES[part]
    return [home.format(i=i) for i in range(n_layer)] if "{i}" in home else [home]


def layerless(name: str) -> str:
    """The same name for all layers: `h.3.attn.q.weight` -> `h.*.attn.q.weight`."""
    home, _, rest = name.partition(".")
    return f"h.*.{rest.partition('.')[2]}" if home == "h" else name


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """What an old and a modern model have in common. `biases` lists the parts that carry a shift or bias."""

    n_layer: int
    n_head: int
    n_embd: int
    n_inner: int
    block_size: int
    vocab_size: int
    activation: ModernActivation
    norm_eps: float
    tied: bool
    biases: tuple[str, ...]

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    def shapes(self) -> dict[str, Shape]:
        """Name and shape of every tensor, in the order of the model; a tied head is left out."""
        raise TypeError("only a GPTSpec or a ModernConfig has tensors")

    def parameters(self) -> int:
        """Number of parameters; a tied head counts once."""
        return sum(math.prod(shape) for shape in self.shapes().values())


@dataclass(frozen=True, kw_only=True)
class GPTSpec(_Sizes):
    """The facts of an old model: pre-norm blocks, LayerNorm, learned positions.

    Scores are divided by √(head size) (`attn_scale` "head") or by √width ("embd"). `biases` are of NORMS and LINEARS.
    """

    activation: Activation
    attn_scale: AttnScale

    def shapes(self) -> dict[str, Shape]:
        """Name and shape of every tensor of the canonical State, in the order of the model; no tied head."""
        return {
            "wte.weight": (self.vocab_size, self.n_embd),
            "wpe.weight": (self.block_size, self.n_embd),
            **_body_shapes(self, self.n_embd, norms=("ln_1", "ln_2", "ln_f"), gain="weight"),
        }


_COUNTS = ("n_layer", "n_head", "n_kv_head", "n_embd", "n_inner", "block_size", "vocab_size", "trained_context")


@dataclass(frozen=True, kw_only=True)
class ModernConfig(_Sizes):
    """All that is needed to build a ModernGPT; it is written into the file's metadata and nothing is left to a default.

    `block_size` is the context that the old model was trained on, `trained_context` that of the longest windows since.
    RoPE divides positions by `rope_scale` (position interpolation, Chen et al. 2023). `biases` are of LINEARS.
    """

    n_kv_head: int
    rope_base: float
    rope_scale: float
    trained_context: int

    def shapes(self) -> dict[str, Shape]:
        """Name and shape of every tensor that is written, in the order of the model; no tied head."""
        return {
            "wte.weight": (self.vocab_size, self.n_embd),
            **_body_shapes(self, self.n_kv_head * self.head_dim, norms=("norm_1", "norm_2", "norm_f"), gain="gain"),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for `json.dumps`."""
        return {**asdict(self), "biases": list(self.biases)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "ModernConfig":
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError for a field that is missing or wrong."""
        early = {"rope_scale": 1.0, "trained_context": plain["block_size"]}  # what the first files don't say
        values: dict[str, Any] = {f.name: {**early, **plain}[f.name] for f in fields(cls)}
        for name in _COUNTS:
            if not isinstance(values[name], int) or isinstance(values[name], bool) or not 1 <= values[name] < 1 << 63:
                raise ValueError(f"{name} is {values[name]!r}")
        for name in ("norm_eps", "rope_base", "rope_scale"):
            if not isinstance(values[name], int | float) or not 0 <= float(values[name]) < math.inf:
                raise ValueError(f"{name} is {values[name]!r}")
        if not values["rope_scale"]:
            raise ValueError("rope_scale is 0")
        heads, kv_heads = values["n_head"], values["n_kv_head"]
        if values["n_embd"] % heads or values["n_embd"] // heads % 2 or heads % kv_heads:
            raise ValueError(f"n_head is {heads}, n_kv_head {kv_heads}, n_embd {values['n_embd']}")
        if not isinstance(values["tied"], bool):
            raise TypeError(f"tied is {values['tied']!r}")
        if values["activation"] not in MODERN_ACTIVATIONS:
            raise ValueError(f"activation is {values['activation']!r}")
        if not isinstance(values["biases"], list | tuple) or set(values["biases"]) - set(LINEARS):
            raise ValueError(f"biases is {values['biases']!r}")
        return cls(**{**values, "biases": tuple(cast("list[str]", values["biases"]))})


def _body_shapes(model: _Sizes, kv_width: int, *, norms: tuple[str, str, str], gain: str) -> dict[str, Shape]:
    """Shapes of the blocks, the final norm and the head, which old and modern models have in common."""
    d, inner, shapes = model.n_embd, model.n_inner, dict[str, Shape]()

    def norm(name: str, part: str) -> None:
        shapes[f"{name}.{gain}"] = (d,)
        if part in model.biases:
            shapes[f"{name}.bias"] = (d,)

    def linear(name: str, part: str, out: int, width: int) -> None:
        shapes[f"{name}.weight"] = (out, width)
        if part in model.biases:
            shapes[f"{name}.bias"] = (out,)

    for i in range(model.n_layer):
        norm(f"h.{i}.{norms[0]}", "ln_1")
        for part, out in (("q", d), ("k", kv_width), ("v", kv_width), ("o", d)):
            linear(f"h.{i}.attn.{part}", part, out, d)
        norm(f"h.{i}.{norms[1]}", "ln_2")
        linear(f"h.{i}.mlp.up", "up", inner, d)
        linear(f"h.{i}.mlp.down", "down", d, inner)
    norm(norms[2], "ln_f")
    if not model.tied:
        shapes["head.weight"] = (model.vocab_size, d)
    if "head" in model.biases:
        shapes["head.bias"] = (model.vocab_size,)
    return shapes
