"""A conversion in pieces: a matrix each, what the moves need beside it, and how it may be cut. Needs no torch.

The exact and the plain moves work on each row of a matrix for itself, once the means are known of the columns of those
that write into the stream. So a file larger than memory is rewritten block by block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from modernize.rewrite.plan import NORM_OF, READERS, WRITERS, Plan
from modernize.spec import HOMES, GPTSpec

NUMBERS = 1 << 18  # in a block: 2 MB in float64, which stays in a processor's cache from one move to the next
MULTIPLE = 64  # of rows or columns, so that sums over some of them add up as those over all do, in the same order

Cut = Literal["rows", "centred", "whole"]  # rows with those of its bias, rows beside the means of all, not at all


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What becomes of one `matrix` of the canonical State: weight and bias of `home`, in the modern model.

    `norm` is that which it reads, whose gain is written before it if this is the `first` that does. `beside` are other
    tensors that the moves need. Parts without `.weight` and `.bias`, all else by its name in the canonical State.
    """

    matrix: str
    home: str
    cut: Cut
    norm: str = ""
    first: bool = False
    beside: tuple[str, ...] = ()

    @property
    def vectors(self) -> tuple[str, ...]:
        """All but the matrix that the moves need, or that is dropped with it, where it is there."""
        norm = (f"{self.norm}.weight", f"{self.norm}.bias") if self.norm else ()
        return (*norm, f"{self.home}.bias", *self.beside)


def pieces(spec: GPTSpec, plan: Plan) -> Iterator[Piece]:
    """All pieces of a conversion without calibration, in the order of the new file."""
    yield Piece(matrix="wte.weight", home="wte", cut="rows", beside=("wpe.weight",))
    for i in range(spec.n_layer):
        for part in ("q", "k", "v", "o", "up", "down"):
            yield _of_layer(i, part, spec, plan)
    tied = "wte" if spec.tied else "head"
    yield Piece(matrix=f"{tied}.weight", home="head", cut="rows", norm="ln_f", first=True)


def _of_layer(i: int, part: str, spec: GPTSpec, plan: Plan) -> Piece:
    home, v = (HOMES[name].format(i=i) for name in (part, "v"))
    if part not in WRITERS:
        norm = HOMES[NORM_OF[part]].format(i=i)
        first = READERS[NORM_OF[part]][0] == part
        return Piece(matrix=f"{home}.weight", home=home, cut="rows", norm=norm, first=first)
    if part == "o" and plan.bias == "keep" and {"v", "ln_1"} & set(spec.biases):  # which passes on what v adds
        norm = HOMES["ln_1"].format(i=i)
        return Piece(matrix=f"{home}.weight", home=home, cut="whole", norm=norm, beside=(f"{v}.weight", f"{v}.bias"))
    return Piece(matrix=f"{home}.weight", home=home, cut="centred")


def rows_of(width: int) -> int:
    """How many rows of a width make a block."""
    return max(NUMBERS // max(width, 1) // MULTIPLE, 1) * MULTIPLE
