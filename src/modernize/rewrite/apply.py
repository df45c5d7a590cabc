"""A plan's moves, one after the other, in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from modernize.rewrite import fold, reset
from modernize.rewrite.plan import Plan
from modernize.spec import GPTSpec, ModernConfig, State

Move = Callable[[State, GPTSpec], State]


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A modern State in float64 with its configuration."""

    state: State
    config: ModernConfig


def folded(state: State, spec: GPTSpec, plan: Plan) -> State:
    """The exact moves of a plan, in float64: positions and biases are still there, and predictions as they were."""
    wide = {name: t.double() for name, t in state.items()}
    for name in plan.exact_moves(spec):
        wide = move(name)(wide, spec)
    return wide


def moved(state: State, spec: GPTSpec, plan: Plan) -> State:
    """All moves of a plan on a canonical State, or on a part of one (see `fold`): a modern State, in float64."""
    wide = {name: t.double() for name, t in state.items()}
    for name in plan.moves(spec):
        wide = move(name)(wide, spec)
    return wide


def rewrite(state: State, spec: GPTSpec, plan: Plan) -> Rewritten:
    """Apply a plan to a canonical State. Raises ValueError for a retrofit, which needs more than weights."""
    wide = moved(state, spec, plan)
    config = plan.config(spec)
    return Rewritten(state={name: wide[name] for name in config.shapes()}, config=config)


def move(name: str) -> Move:
    """A move by its name in a plan."""
    home: ModuleType = fold if hasattr(fold, name) else reset
    found: Move = getattr(home, name)
    return found
