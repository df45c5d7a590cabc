"""A plan's moves, one after the other, in float64."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

from modernize.choices import Tie
from modernize.rewrite import fold, reset
from modernize.rewrite.plan import TIE_HARM, Plan
from modernize.spec import GPTSpec, ModernConfig, State

Move = Callable[[State, GPTSpec], State]


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A modern State in float64 with its configuration, the plan that made it, and what there is to say about it."""

    state: State
    config: ModernConfig
    plan: Plan
    warnings: tuple[str, ...]


def rewrite(state: State, spec: GPTSpec, plan: Plan, *, tie: Tie = "auto") -> Rewritten:
    """Apply a plan to a canonical State. With tie "auto", the head is untied where staying tied would do real harm."""
    wide = {name: t.double() for name, t in state.items()}
    untie, warnings = _untie(wide, spec, plan, tie)
    plan = replace(plan, untie=untie)
    for name in plan.moves(spec):
        wide = move(name)(wide, spec)
    config = plan.config(spec)
    return Rewritten(state={name: wide[name] for name in config.shapes()}, config=config, plan=plan, warnings=warnings)


def move(name: str) -> Move:
    """A move by its name in a plan."""
    home: ModuleType = fold if hasattr(fold, name) else reset
    found: Move = getattr(home, name)
    return found


def _untie(state: State, spec: GPTSpec, plan: Plan, tie: Tie) -> tuple[bool, tuple[str, ...]]:
    """Whether to untie, and the sentence that says what it costs."""
    if not spec.tied or tie != "auto":
        return spec.tied and tie == "untie", ()
    harm = fold.tie_cost(state, spec) if plan.init == "fold" else 0.0
    if harm <= TIE_HARM:
        return False, ()
    more = spec.vocab_size * spec.n_embd
    return True, (
        f"the head was untied, which adds {more:,} parameters: tied, folding would cost about {harm:.4f} nats "
        "(--tie tie keeps it tied)",
    )
