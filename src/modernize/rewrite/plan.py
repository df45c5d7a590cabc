"""What is chosen and what follows from it: which moves, which modern model, and what becomes of every old tensor.

Plain data, so that `inspect` tells all this without loading torch.
"""

import math
from dataclasses import dataclass

from modernize.choices import Bias, Fate, Init
from modernize.errors import UsageError, check_choice
from modernize.spec import HOMES, LINEARS, NORMS, GPTSpec, ModernConfig

# who reads what each norm gives
READERS = {"ln_1": ("q", "k", "v"), "ln_2": ("up",), "ln_f": ("head",)}
NORM_OF = {reader: norm for norm, readers in READERS.items() for reader in readers}
# who writes into the residual stream, besides the embeddings
WRITERS = ("o", "down")
# names of the moves in rewrite/fold.py and rewrite/reset.py, in order
FOLD = ("fold_shift", "fold_gain", "centre", "fold_mean_position", "fold_value_bias")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to convert: `init` the moves, `bias` what becomes of biases, `untie` to give a tied head its own matrix.

    Raises UsageError for choices that are none or that contradict each other.
    """

    init: Init = "retrofit"
    bias: Bias = "drop"
    untie: bool = False
    rope_base: float = 10000.0

    def __post_init__(self) -> None:
        check_choice("init", self.init, Init)
        check_choice("bias", self.bias, Bias)
        if self.init == "reset" and self.bias == "keep":
            raise UsageError("--init reset drops every bias, so --bias keep contradicts it", hint="use another --init")
        if not 1 < self.rope_base < math.inf:
            raise UsageError(f"--rope-base {self.rope_base} is not a number above 1", hint="10000 is usual")

    def exact_moves(self, spec: GPTSpec) -> tuple[str, ...]:
        """Names of the moves that keep positions and biases, in order; all but `reset_gains` keep every prediction."""
        start = ("untie_head",) if spec.tied and self.untie else ()
        middle = ("reset_gains",) if self.init == "reset" else FOLD
        return (*start, *middle, "scale_queries")

    def moves(self, spec: GPTSpec) -> tuple[str, ...]:
        """Names of all moves, in order; biases are dropped first, before anything is folded into them.

        Raises ValueError for `retrofit`, which needs more than weights.
        """
        if self.init == "retrofit":
            raise ValueError("retrofit is made by rewrite.retrofit, from exact moves and calibration text")
        biases = ("drop_biases",) if self.bias == "drop" else ()
        return (*biases, *self.exact_moves(spec), "drop_positions", "rename")

    def tied(self, spec: GPTSpec) -> bool:
        """Whether the modern head shares the embedding's matrix."""
        return spec.tied and not self.untie

    def biases(self, spec: GPTSpec) -> tuple[str, ...]:
        """Which parts of the modern model carry a bias."""
        if self.bias == "drop":
            return ()
        carried = set(spec.biases) | {reader for norm in NORMS if norm in spec.biases for reader in READERS[norm]}
        if "v" in carried:
            carried = (carried - {"v"}) | {"o"}
        return tuple(part for part in LINEARS if part in carried)

    def config(self, spec: GPTSpec) -> ModernConfig:
        """The modern model that comes out."""
        return ModernConfig(
            n_layer=spec.n_layer,
            n_head=spec.n_head,
            n_kv_head=spec.n_head,
            n_embd=spec.n_embd,
            n_inner=spec.n_inner,
            block_size=spec.block_size,
            vocab_size=spec.vocab_size,
            activation=spec.activation,
            norm_eps=spec.norm_eps,
            rope_base=self.rope_base,
            rope_scale=1.0,
            trained_context=spec.block_size,
            tied=self.tied(spec),
            biases=self.biases(spec),
        )

    def fate(self, target: str, spec: GPTSpec) -> tuple[Fate | None, tuple[str, ...]]:
        """What becomes of one tensor of the canonical State, and which modern tensors hold it afterwards.

        None where it is carried over: then its name in the file decides between kept, renamed and split.
        """
        part = part_of(target)
        if target == "head.weight" and spec.tied:  # the embedding's matrix under a second name
            return None, (target if self.untie else "wte.weight",)
        if part == "wpe":
            if self.init == "retrofit":  # its mean into the embedding, the rest into who looks where
                looking = (
                    name.replace("{i}", str(i)) for i in range(spec.n_layer) for name in (HOMES["q"], HOMES["k"])
                )
                return "absorbed", ("wte.weight", *(f"{name}.weight" for name in looking))
            return ("folded", ("wte.weight",)) if self.init == "fold" else ("dropped", ())
        if part in NORMS and target.endswith(".weight"):
            gain = beside(target, part.replace("ln_", "norm_"), "gain")
            if self.init == "reset":
                return "reinitialized", (gain,)
            if part == "ln_f" and self.tied(spec):
                return None, (gain,)
            return "folded", tuple(beside(target, reader, "weight") for reader in READERS[part])
        if target.endswith(".bias"):
            if self.bias == "drop":
                return self._absorbed(target, part, spec)
            if part in NORMS:
                homes = ("o" if reader == "v" else reader for reader in READERS[part])
                return "folded", tuple(beside(target, reader, "bias") for reader in homes)
            if part == "v":
                return "folded", (beside(target, "o", "bias"),)
        if target == "wte.weight" and spec.tied and self.untie:
            return None, (target, "head.weight")
        return None, (target,)

    def _absorbed(self, target: str, part: str, spec: GPTSpec) -> tuple[Fate, tuple[str, ...]]:
        """Where a bias goes that the modern model has no place for."""
        if self.init != "retrofit" or part == "k":  # a key's bias moves all scores of a query alike
            return "dropped", ()
        if part in ("ln_f", "head") and self.tied(spec):  # the last block writes what the head would have added
            return "absorbed", (HOMES["down"].format(i=spec.n_layer - 1) + ".weight",)
        readers = READERS.get(part, ("o",) if part == "v" else (part,))
        homes = dict.fromkeys("o" if reader == "v" else reader for reader in readers if reader != "k")
        return "absorbed", tuple(beside(target, home, "weight") for home in homes)


def part_of(name: str) -> str:
    """`h.0.attn.q.bias` -> `q`; `wte.weight` -> `wte`."""
    return name.split(".")[-2]


def beside(target: str, other: str, kind: str) -> str:
    """The same layer's tensor of another part: (`h.0.ln_1.weight`, `q`, `weight`) -> `h.0.attn.q.weight`."""
    part = part_of(target)
    layer = target.split(".")[1] if "{i}" in HOMES[part] else "0"
    if other.startswith("norm"):
        return HOMES[part].format(i=layer).replace(part, other) + f".{kind}"
    return HOMES[other].format(i=layer) + f".{kind}"
