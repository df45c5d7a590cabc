"""Rewrite from the file, piece by piece, so that no more than some blocks and the matrices of a layer are in memory."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from modernize.dialects import Step
from modernize.recognise import Recognised, spans
from modernize.rewrite.apply import moved
from modernize.rewrite.fold import column_means, mean_position
from modernize.rewrite.pieces import Piece, pieces, rows_of
from modernize.rewrite.plan import Plan
from modernize.rewrite.reset import modern_name
from modernize.spec import State

Cast = Callable[[State], State]


def stream(found: Recognised, plan: Plan, cast: Cast) -> Iterator[Tensor]:
    """What `rewrite` makes of a checkpoint's State, in the order of the new file; matrices may come in blocks of rows.

    `cast` brings tensors into the dtype in which they are written. Masks and checksums are left to the caller. Raises
    BadTensors for values that are not finite, and what `cast` raises.
    """
    reader = _Reader(found)
    new = plan.config(found.spec).shapes()
    for piece in pieces(found.spec, plan):
        gain, weight, bias = modern_name(f"{piece.norm}.weight"), f"{piece.home}.weight", f"{piece.home}.bias"
        beside = {name: reader.whole(name).double() for name in piece.vectors if name in reader.shapes}
        if "wpe.weight" in beside:
            beside = {"wpe.mean": mean_position(beside["wpe.weight"], found.spec)}
        blocks = reader.blocks(piece, beside) if {weight, bias} & set(new) else iter([beside])
        wanted = {weight, bias, *([gain] if piece.first else ())} & set(new)
        biases = []
        for number, block in enumerate(blocks):
            made = moved(block, found.spec, plan)
            made = cast({name: tensor for name, tensor in made.items() if name in wanted})
            if piece.first and number == 0:
                yield made[gain]
            if weight in made:
                yield made[weight]
            if bias in made and (piece.cut == "rows" or number == 0):
                biases.append(made[bias])
        if biases:
            yield torch.cat(biases)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread. On a block, several would wait for each other longer than they work, above all where
    another core hashes.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Reader:
    """Reads the canonical State from a file, and keeps what the last matrix came with: three may lie in one."""

    def __init__(self, found: Recognised) -> None:
        self.found, self.shapes = found, found.spec.shapes()
        self._step: Step | None = None
        self._given: State = {}

    def whole(self, name: str) -> Tensor:
        """One tensor of the canonical State."""
        step = self.found.step_of[name]
        if len(self.shapes[name]) == 1:
            return self.found.read(step)[name]
        if step is not self._step:
            self._given = {}  # before there is more
            self._step, self._given = step, self.found.read(step)
        return self._given[name]

    def blocks(self, piece: Piece, beside: State) -> Iterator[State]:
        """A piece's matrix, cut as it may be, each block with all that the moves need."""
        name, bias = piece.matrix, f"{piece.home}.bias"
        (height, width), step = self.shapes[name], self.found.step_of[name]
        if piece.cut == "whole":
            yield {**beside, name: self.whole(name)}
            return
        if piece.cut == "centred":
            beside = {**beside, f"{piece.home}.mean": column_means(self.whole(name), rows_of(height))}
        apart = step.op.by_rows and all(map(self.found.checkpoint.by_rows, step.sources))
        for start, stop in spans(height, rows_of(width)):
            if apart and piece.cut == "rows":
                rows = self.found.read_rows(step, start, stop)[name]
            else:
                rows = self.whole(name)[start:stop]
            cut = {bias: beside[bias][start:stop]} if piece.cut == "rows" and bias in beside else {}
            yield {**beside, name: rows, **cut}
