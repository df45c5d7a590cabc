"""What a fine-tune lives in: where it is saved, who stops it, and who trains along."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from modernize.parallel import World
from modernize.progress import Stages, unseen
from modernize.spec import State


class Keeper(Protocol):
    """Where a run is saved, so that it can go on: see `resume.RunFile`."""

    def save(self, tensors: State, facts: Mapping[str, Any]) -> str:
        """Write it; gives where."""

    def load(self) -> tuple[State, dict[str, Any]] | None:
        """What was saved last."""


def never() -> bool:
    """Nobody asks to stop."""
    return False


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a run lives in: where it is saved, whether it goes on from there, who stops it, and who trains along."""

    keeper: Keeper | None = None
    resume: bool = False
    stop: Callable[[], bool] = never
    world: World = field(default_factory=World)
    progress: Stages = unseen
