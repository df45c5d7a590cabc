"""What a fine-tune is told, and what it tells: Settings, and the events that the bar, the log and the plot live on."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from modernize.choices import DeviceName, OptimizerName, PrecisionName
from modernize.errors import UsageError, check_choice

Stopped = Literal["steps", "recovered", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train. Zero means chosen, and None for `distill`: the batch by `train`, rate and weight by `recipe`,
    the others from `steps`.
    """

    steps: int = 200
    batch_size: int = 0
    block_size: int = 0
    target_context: int = 0
    activation: Literal["keep", "silu"] = "keep"
    grad_accum: int = 1
    lr: float = 0.0
    optimizer: OptimizerName = "auto"
    distill: float | None = None
    warmup: int = 0
    grad_clip: float = 1.0
    seed: int = 0
    device: DeviceName = "auto"
    dtype: PrecisionName = "auto"
    compile: bool | None = None
    eval_every: int = 0
    val_tokens: int = 1 << 18
    until_recovered: bool = False
    tolerance: float = 0.0
    checkpoint_every: int = 0
    activation_checkpointing: bool = False
    shard: bool = False

    def check(self) -> None:
        """Raise UsageError for a number that cannot be."""
        for name, low in (
            ("steps", 1),
            ("batch_size", 0),
            ("block_size", 0),
            ("target_context", 0),
            ("grad_accum", 1),
            ("warmup", 0),
            ("checkpoint_every", 0),
        ):
            if getattr(self, name) < low:
                raise UsageError(
                    f"--{name.replace('_', '-')} {getattr(self, name)} is below {low}",
                    hint="give a larger number",
                )
        for option, words in (
            ("optimizer", OptimizerName),
            ("device", DeviceName),
            ("dtype", PrecisionName),
            ("activation", Literal["keep", "silu"]),
        ):
            check_choice(option, getattr(self, option), words)
        if self.warmup > self.steps:
            raise UsageError(
                f"--warmup {self.warmup} is more than the {self.steps} steps there are", hint="give fewer, or none"
            )
        if self.tolerance and not self.until_recovered:
            raise UsageError("--tolerance says when a run stops that is to stop", hint="add --until-recovered")
        if self.distill is not None and not 0 <= self.distill <= 1:
            raise UsageError(f"--distill {self.distill} is not between 0 and 1", hint="0.5 is half of each")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise UsageError(f"--lr {self.lr} is not a positive number", hint="leave it out for the default")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise UsageError(f"--tolerance {self.tolerance} is no number from 0 up", hint="it is in nats, such as 0.01")


@dataclass(frozen=True, kw_only=True)
class Started:
    """Before the first step: losses, and what was chosen. A resumed run has `done` steps behind it."""

    steps: int
    done: int
    before: float
    old: float | None
    lr: float
    distill: float
    match: bool
    batch_size: int
    block_size: int
    longest: int  # window, in tokens
    device: str
    dtype: str
    processes: int
    sharded: bool
    validation_tokens: int


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """After an update: `loss` is what was minimised but for matched states, `tokens` all that were seen so far."""

    step: int
    loss: float
    lr: float
    tokens: int
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True, kw_only=True)
class Validated:
    """The validation loss after a step."""

    step: int
    loss: float
    best: bool


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The run was saved after a step, and can be resumed from there."""

    step: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that the user should know."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end: the model holds the weights of the best validation."""

    steps: int
    tokens: int
    before: float
    after: float
    best: float
    old: float | None
    tokens_per_second: float
    device: str
    dtype: str
    stopped: Stopped

    @property
    def recovery(self) -> float | None:
        """Share of the gap to the old loss that was closed: 1 when it is reached; None without a teacher."""
        if self.old is None:
            return None
        gap = self.before - self.old
        return (self.before - self.best) / gap if gap > 0 else 1.0


def as_row(event: "Event") -> dict[str, Any]:
    """An event as a row of the log; what JSON has no number for is null."""
    row = {"event": type(event).__name__.lower(), **asdict(event)}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


Event: TypeAlias = Started | Stepped | Validated | Saved | Notice | Finished
