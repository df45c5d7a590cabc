"""What a fine-tune minimises, from states and without ever holding all logits.

    loss = (1 − w) · cross-entropy + w · (KL(teacher ‖ model) + MATCH · missed)       with a teacher, w = `distill`

`missed` is the share of the last states that the teacher's don't explain: see `matching`. It helps a model that is near
its teacher, and hinders one that is far.

The gradient of the rest by the logits is `softmax(new) − (1 − w) · one-hot(target) − w · softmax(old)`, so it is taken
in the forward pass, some places at a time, and only gradients of the states and of the head's matrix are kept. (The
idea is that of Hsu et al. 2024, Liger Kernel; with a teacher, its logits too come and go a part at a time.)
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from modernize.data import IGNORED
from modernize.devices import autocast
from modernize.matching import Matching
from modernize.memory import is_out_of_memory
from modernize.model import ModernGPT
from modernize.old import OldGPT

MATCH = 6.0
LOGITS_AT_ONCE = 1 << 25  # numbers: 128 MB in float32, less would leave a GPU idle
PLACES_AT_ONCE = 512  # of which products are as fast as they come, and logits of a small vocabulary stay in a cache


class Objective(nn.Module):
    """The model and its loss as one module, so that what wraps modules for many devices sees the whole of it.

    `objective(x, y)` with x and y (B, T) gives the sum of the loss over the places that are predicted.
    """

    def __init__(self, model: ModernGPT, teacher: OldGPT | None, precision: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.distill = 0.0  # weight of the teacher, as the recipe says
        self.precision = precision
        self.matching: Matching | None = None
        self._teacher = (teacher,)  # in a tuple, so that it is no submodule: it is not trained and not wrapped
        self.trunk = model.states

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(B, T) ids and targets -> a number in float32."""
        (teacher,) = self._teacher
        head = self.model.head
        with autocast(x.device, self.precision):
            states = self.trunk(x).flatten(0, 1)  # (N, n_embd)
            old: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
            if teacher is not None and self.distill:
                with torch.inference_mode():
                    old = (self._taught(x).flatten(0, 1), teacher.head.weight, teacher.head.bias)
            total: Tensor = SummedLoss.apply(  # type: ignore[no-untyped-call]
                states, head.weight, head.bias, y.flatten(), *old, self.distill
            )
        if self.matching is not None and old[0] is not None:
            total = total + self.distill * MATCH * self.matching.loss(states, old[0], y.flatten() != IGNORED)
        return total

    def _taught(self, x: Tensor) -> Tensor:
        """The teacher's states (B, T, d_old). A window past its context it reads in pieces, each from the beginning.

        What begins a piece it knows less of than the model does; it still helps more than the data alone.
        """
        (teacher,) = self._teacher
        assert teacher is not None
        return torch.cat([teacher.states(piece) for piece in torch.split(x, teacher.block_size, dim=1)], dim=1)

    def match(self) -> Matching:
        """Draw states to the teacher's from now on, as its weight says."""
        (teacher,) = self._teacher
        assert teacher is not None
        self.matching = Matching(teacher.spec.n_embd, self.model.config.n_embd, next(self.model.parameters()).device)
        return self.matching

    @torch.no_grad()
    def look(self, x: Tensor, y: Tensor) -> None:
        """Show the states of a batch (B, T) to the matching, and learn nothing from it."""
        assert self.matching is not None
        with autocast(x.device, self.precision):
            new, old = self.model.states(x).flatten(0, 1), self._taught(x).flatten(0, 1)
        self.matching.look(new, old, y.flatten() != IGNORED)

    def compile_trunk(self, shapes: Iterable[tuple[int, int]]) -> str:
        """Compile the trunk for batches (B, T), each tried forward and backward as if it had not been.

        Gives why it failed, and nothing where it didn't. Raises what says that there is no memory.
        """
        failure = ""
        try:
            self.trunk = torch.compile(self.model.states, dynamic=False)  # there are two shapes, and both come often
            for shape in shapes:
                ids = torch.zeros(shape, dtype=torch.int64, device=self.model.wte.weight.device)
                self(ids, ids).backward()
        except Exception as error:  # whatever the compiler raises, training works without it
            if is_out_of_memory(error):
                raise
            self.trunk = self.model.states
            failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
        self.model.zero_grad(set_to_none=True)
        if self.matching is not None:
            self.matching.forget()
        return failure

    def matched(self) -> Tensor:
        """What the matching added to the loss since the last update."""
        zero = torch.zeros((), device=self.model.wte.weight.device)
        return zero if self.matching is None else self.distill * MATCH * self.matching.last

    def predict(self, x: Tensor) -> Tensor:
        """Logits (B, T, vocab), for validation."""
        logits: Tensor = self.model(x)
        return logits


class SummedLoss(torch.autograd.Function):
    """The loss summed over places, of states (N, d), a head (vocab, d) and (vocab,), targets (N,), those of a teacher
    or None in their place, and the teacher's weight.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  (autograd hands arguments over by position)
        ctx: Any,  # noqa: ANN401
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        old_states: Tensor | None,
        old_weight: Tensor | None,
        old_bias: Tensor | None,
        distill: float,
    ) -> Tensor:
        """The sum, in float32 or the states' dtype where that is wider; gradients are kept for `backward`."""
        narrow = _product_dtype(states)
        ctx.dtypes = states.dtype, weight.dtype
        wide = torch.float64 if states.dtype == torch.float64 else torch.float32
        states, weight = states.to(narrow), weight.to(narrow)
        bias = None if bias is None else bias.to(wide)
        if old_states is not None and old_weight is not None:
            old_states, old_weight = old_states.to(narrow), old_weight.to(narrow)
            old_bias = None if old_bias is None else old_bias.to(wide)
        total = states.new_zeros((), dtype=wide)
        by_states = torch.empty_like(states)
        by_weight = torch.zeros_like(weight, dtype=wide)
        by_bias = None if bias is None else torch.zeros_like(bias)
        at_once = places_at_once(len(weight), states.device, narrow)
        whole = states.device.type == "cpu" and bool((targets != IGNORED).all())  # elsewhere, asking would wait
        for rows in _parts(len(states), at_once):
            known = targets[rows, None] != IGNORED  # (n, 1)
            wanted = targets[rows, None].clamp(min=0)
            new = _logits(states[rows], weight, bias, wide)  # (n, vocab)
            told = new.gather(1, wanted)
            if old_states is None or old_weight is None:
                top, total_log = softmax_(new)
                loss = (1 - distill) * (top - told + total_log)
            else:
                old = _logits(old_states[rows], old_weight, old_bias, wide)
                apart = old - new
                (top, total_log), (old_top, old_log) = softmax_(new), softmax_(old)
                loss = (1 - distill) * (top - told + total_log)
                loss += distill * (apart.mul_(old).sum(-1, keepdim=True) + (top - old_top) + (total_log - old_log))
                new.sub_(old, alpha=distill)
            total += (loss * known).sum()
            new.scatter_add_(1, wanted, new.new_full(wanted.shape, distill - 1))  # and now it is the gradient
            if not whole:
                new *= known
            if by_bias is not None:
                by_bias += new.sum(0)
            by_logits = new.to(narrow)
            torch.mm(by_logits, weight, out=by_states[rows])
            if narrow == wide:
                by_weight.addmm_(by_logits.T, states[rows])
            else:
                by_weight += by_logits.T @ states[rows]
        ctx.save_for_backward(by_states, by_weight, by_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Of states, weight and bias; the rest has none."""
        by_states, by_weight, by_bias = ctx.saved_tensors
        states, weight = ctx.dtypes
        by_bias = None if by_bias is None else (by_bias * outer).to(weight)
        return (by_states * outer).to(states), (by_weight * outer).to(weight), by_bias, *[None] * 5


def places_at_once(vocab: int, device: torch.device, precision: torch.dtype) -> int:
    """Of how many places all logits are taken together. Gradients over many would overflow in float16."""
    at_once = max(1, LOGITS_AT_ONCE // vocab)
    return min(at_once, PLACES_AT_ONCE) if device.type == "cpu" or precision == torch.float16 else at_once


def softmax_(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (n, vocab) become probabilities, in place.

    Gives the largest logit of each row and log Σ exp(logits − largest), each (n, 1): log Σ exp in two parts, so that
    differences of it lose nothing where logits lie far from zero.
    """
    top = logits.amax(-1, keepdim=True)
    total = logits.sub_(top).exp_().sum(-1, keepdim=True)
    logits /= total
    return top, total.log()


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, wide: torch.dtype) -> Tensor:
    logits = (states @ weight.T).to(wide)
    return logits if bias is None else logits.add_(bias)


def _product_dtype(states: Tensor) -> torch.dtype:
    """The dtype of matrix products: what autocast says where it is on."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def _parts(end: int, size: int) -> Iterator[slice]:
    for first in range(0, end, size):
        yield slice(first, min(first + size, end))
