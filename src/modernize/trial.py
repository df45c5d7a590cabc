"""Try: what neither a file nor its user says is settled by the loss on DATA under each possible reading.

A wrong activation costs hundredths of a nat, a wrong attention scale or number of heads tenths, a norm in the wrong
place everything; so the lowest loss tells. A post-norm model is tried too, though it can't be converted.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from modernize.checkpoint import Checkpoint
from modernize.data import Corpus
from modernize.facts import CHOICES, Facts, open_facts
from modernize.measure import mean_loss
from modernize.old import OldBlock, OldGPT
from modernize.progress import Progress, silent
from modernize.recognise import Recognised, covers_of, recognise
from modernize.spec import GPTSpec, State

TOKENS = 4096  # of the validation part, for each reading
MOST_HEADS = 64
SMALLEST_HEAD = 4


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One reading: values of the facts that are open, and the loss in nats."""

    facts: dict[str, Any]
    loss: float

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {**self.facts, "loss": self.loss}


class PostNormGPT(OldGPT):
    """The same tensors with norms behind attention and MLP, in the stream: `x = ln_1(x + attn(x))`."""

    def states(self, ids: Tensor, caches: Sequence[Any] = ()) -> Tensor:
        """What the head reads: (B, T) -> (B, T, n_embd)."""
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]  # (B, T, n_embd)
        for block in self.h:
            assert isinstance(block, OldBlock)
            x = block.ln_1(x + block.attn(x))
            x = block.ln_2(x + block.mlp(x))
        final: Tensor = self.ln_f(x)  # (B, T, n_embd)
        return final


def try_readings(
    found: Recognised, names: Sequence[str], corpus: Corpus, *, progress: Progress = silent
) -> tuple[Trial, ...]:
    """Every reading of what is open, the lowest loss first; none where nothing is. See `first_reading`.

    Raises BadData for DATA that does not fit.
    """
    if not names:
        return ()
    state: State = {name: tensor.float() for name, tensor in found.state().items()}
    ids = corpus.windows("val", found.spec.block_size, vocab_size=found.spec.vocab_size)
    limit = max(1, TOKENS // found.spec.block_size)
    readings = list(_readings(found.spec, names))
    trials = []
    for done, facts in enumerate(readings):
        progress(done, len(readings))
        kind = PostNormGPT if facts.get("norm") == "post" else OldGPT
        spec = replace(found.spec, **{name: value for name, value in facts.items() if name != "norm"})
        trials.append(Trial(facts=facts, loss=mean_loss(kind.from_state(spec, state), ids, limit=limit).loss))
    progress(len(readings), len(readings))
    return tuple(sorted(trials, key=lambda trial: trial.loss if trial.loss == trial.loss else float("inf")))


def first_reading(checkpoint: Checkpoint, said: Facts) -> tuple[Recognised, tuple[str, ...]]:
    """A checkpoint as one of its readings, and the names of the facts that are open. Raises what `recognise` raises."""
    covers = covers_of(checkpoint, said)
    names = open_facts(checkpoint, covers, said)
    guessed: dict[str, Any] = {name: CHOICES[name][0] for name in names if name in CHOICES}
    guessed |= {"norm": "pre"} if "norm" in names else {}
    guessed |= {"n_head": 1} if "n_head" in names else {}
    return recognise(checkpoint, replace(said, **guessed)), names


def settled(said: Facts, trials: Sequence[Trial]) -> Facts:
    """What the user said, and the best reading of the rest."""
    return replace(said, **trials[0].facts) if trials else said


def _readings(spec: GPTSpec, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    heads = [
        n for n in range(1, MOST_HEADS + 1)
        if spec.n_embd % n == 0 and spec.n_embd // n >= SMALLEST_HEAD and spec.n_embd // n % 2 == 0
    ]  # fmt: skip
    choices = {name: heads if name == "n_head" else CHOICES[name] for name in names}
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))
