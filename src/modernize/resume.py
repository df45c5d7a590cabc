"""What a run needs to go on as if it had never stopped: tensors and plain facts, in one safetensors file.

No pickle: tensors are the model, its best weights, the optimizers' states and torch's random states; facts are JSON.
The file is written aside and renamed, so that there is always a whole one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modernize.errors import UnreadableFile, UsageError
from modernize.events import Saved, as_row
from modernize.spec import State
from modernize.stored import RUN_KEY
from modernize.whole import clear_leftovers
from modernize.write import write_tensors

HISTORY = "history"
SCHEMA = 3
_UNREADABLE = (OSError, KeyError, TypeError, ValueError)
_HELD = {"identity", "facts", "outputs", "sha256"}
_CHOSEN = ("--lr", "--warmup", "--eval-every")  # by the run, where they are 0


class RunFile:
    """The file of one run. `identity` says what has to be the same for it to go on: options, and hashes of its files.

    `outputs` are the files that the run writes, `history` the rows of its log so far. Only the process that `writes`
    does so.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], *, outputs: Sequence[Path] = (), writes: bool = True
    ) -> None:
        self.path, self.writes = path, writes
        self.outputs = [str(output.resolve()) for output in outputs]
        self.identity = json.loads(json.dumps(dict(identity)))  # as it will be read back
        self.history: list[dict[str, Any]] = []

    def save(self, tensors: State, facts: Mapping[str, Any]) -> str:
        """Write a State and facts, in place of what was there. Raises OutputRefused."""
        if self.writes:
            history = [*self.history, as_row(Saved(step=facts["done"], path=str(self.path)))]
            rows = bytearray(json.dumps(history).encode())  # too long for a header, some day
            state = {**tensors, HISTORY: torch.frombuffer(rows, dtype=torch.uint8)}
            plain = {
                "schema": SCHEMA,
                "identity": self.identity,
                "facts": dict(facts),
                "outputs": self.outputs,
            }
            plain["sha256"] = _digest(state, plain)
            write_tensors(self.path, state, {"format": "pt", RUN_KEY: json.dumps(plain)})
        return str(self.path)

    def load(self) -> tuple[State, dict[str, Any]] | None:
        """What was saved last, or None.

        Raises UnreadableFile for another kind of file, UsageError where something is not what it was.
        """
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        plain = _facts_of(self.path)
        self._check(plain["identity"])
        try:
            with safe_open(self.path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            if _digest(tensors, plain) != plain["sha256"]:
                raise ValueError("it is not as it was saved")
            self.history = json.loads(tensors.pop(HISTORY).numpy().tobytes())
        except (SafetensorError, *_UNREADABLE) as error:
            raise _no_run(self.path, error) from error
        return tensors, plain["facts"]

    def remove(self) -> None:
        """The run is over."""
        if self.writes:
            self.path.unlink(missing_ok=True)
            clear_leftovers(self.path)  # of a run that was killed while it saved

    def _check(self, saved: Mapping[str, Any]) -> None:
        for name in {**saved, **self.identity}:
            was, now = saved.get(name), self.identity.get(name)
            if was != now:
                raise UsageError(
                    f"{name} is {_short(name, now)}, and was {_short(name, was)} when the run in {self.path} was saved",
                    hint="give the same files and options, or start anew: without --resume, with --force",
                )


def outputs_of(path: Path) -> tuple[str, ...]:
    """The files that a saved run has written or will write, and may replace. Raises UnreadableFile for another file."""
    return tuple(_facts_of(path)["outputs"])


def _facts_of(path: Path) -> dict[str, Any]:
    """What a saved run says beside its tensors. Raises UnreadableFile."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            plain = json.loads((file.metadata() or {})[RUN_KEY])
        schema = plain["schema"]
        missing = _HELD - set(plain) if schema == SCHEMA else ()
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
    except (SafetensorError, *_UNREADABLE) as error:
        raise _no_run(path, error) from error
    if schema != SCHEMA:
        raise UnreadableFile(
            f"{path} was saved in schema {schema!r}, and this version reads {SCHEMA}",
            hint="resume it with the version that saved it",
        )
    return dict(plain)


def _no_run(path: Path, error: Exception) -> UnreadableFile:
    return UnreadableFile(
        f"{path} is no run that can be resumed: {error}", hint="start anew: without --resume, with --force"
    )


def _digest(state: State, plain: Mapping[str, Any]) -> str:
    """Of facts, names and bytes, in an order that doesn't depend on that of the file."""
    found = hashlib.sha256(json.dumps([plain[name] for name in sorted(_HELD - {"sha256"})], sort_keys=True).encode())
    for name in sorted(state):
        found.update(name.encode())
        found.update(state[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _short(name: str, value: object) -> str:
    if value is None or value == "" or (value == 0 and name in _CHOSEN):
        return "left out"
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
