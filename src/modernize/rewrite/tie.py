"""Whether a tied head stays tied: decided from two tensors and without torch, so that `inspect` can foretell it."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from modernize.choices import Tie
from modernize.errors import check_choice
from modernize.recognise import Recognised
from modernize.rewrite.pieces import rows_of
from modernize.rewrite.plan import Plan

TIE_HARM = 1e-3  # nats; `auto` unties where staying tied costs more than losses are told to


def settle_tie(
    found: Recognised, plan: Plan, tie: Tie, *, measured: Callable[[], float] | None = None
) -> tuple[Plan, tuple[str, ...]]:
    """The plan with `untie` decided, and the sentence that says what it costs. Raises UsageError for no such `tie`.

    `measured` tells the harm of tying in nats, for those who have text; it is estimated from the weights otherwise.
    """
    check_choice("tie", tie, Tie)
    spec = found.spec
    if not spec.tied or tie != "auto":
        return replace(plan, untie=spec.tied and tie == "untie"), ()
    if plan.init == "reset":
        harm = 0.0
    elif measured:
        harm = measured()
    else:
        harm = tie_cost(found.array_blocks("wte.weight", rows_of(spec.n_embd)), found.array("ln_f.weight"))
    if not harm > TIE_HARM:
        return replace(plan, untie=False), ()
    return replace(plan, untie=True), (
        f"the head was untied, which adds {spec.vocab_size * spec.n_embd:,} parameters: tied, folding would cost about "
        f"{harm:.4f} nats (--tie tie keeps it tied)",
    )


def tie_cost(wte: Iterable[NDArray[np.float64]], gain: NDArray[np.float64]) -> float:
    """What centring the embedding (`fold.centre`) costs a model whose head stays tied, in nats, from the weights alone.

    wte is (vocab, d) in blocks of rows, the final norm's gain (d,). With m_v the mean of row v, the logit of v changes
    by `m_v·(g·r)`, r the normed state before its gain, which has mean zero and length √d. For r in no special
    direction, `g·r` has the variance |g − mean g|²; to second order the divergence of the old from the new prediction
    is half the variance of the change over tokens, here taken as equally likely: rows that were never trained count
    like all others.
    """
    means = np.concatenate([rows.mean(1) for rows in wte])  # (vocab,)
    return float(0.5 * means.var() * np.square(gain - gain.mean()).sum())
