"""What a run needs to go on as if it had never stopped: tensors and plain facts, in one safetensors file.

No pickle: tensors are the model, its best weights, the optimizers' states and torch's random states; facts are JSON.
The file is written aside and renamed, so that there is always a whole one.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modernize.errors import UnreadableFile, UsageError
from modernize.spec import State
from modernize.whole import clear_leftovers
from modernize.write import write_tensors

HISTORY = "history"
METADATA_KEY = "modernize_run"
SCHEMA = 2


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
            plain = {"schema": SCHEMA, "identity": self.identity, "facts": dict(facts), "outputs": self.outputs}
            rows = bytearray(json.dumps(self.history).encode())  # too long for a header, some day
            state = {**tensors, HISTORY: torch.frombuffer(rows, dtype=torch.uint8)}
            write_tensors(self.path, state, {"format": "pt", METADATA_KEY: json.dumps(plain)})
        return str(self.path)

    def load(self) -> tuple[State, dict[str, Any]] | None:
        """What was saved last, or None.

        Raises UnreadableFile for another kind of file, UsageError where something is not what it was.
        """
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                plain = json.loads((file.metadata() or {})[METADATA_KEY])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            saved, facts, schema = (plain[key] for key in ("identity", "facts", "schema"))
            history = json.loads(tensors.pop(HISTORY).numpy().tobytes())
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise UnreadableFile(
                f"{self.path} is no run that can be resumed: {error}", hint="delete it, and start without --resume"
            ) from error
        if schema != SCHEMA:
            raise UnreadableFile(
                f"{self.path} was saved in schema {schema!r}, and this version reads {SCHEMA}",
                hint="resume it with the version that saved it",
            )
        self._check(saved)
        self.history = history
        return tensors, facts

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
                    f"{name} is {_short(now)}, and was {_short(was)} when the run in {self.path} was saved",
                    hint="give the same files and options, or start anew: without --resume, with --force",
                )


def outputs_of(path: Path) -> tuple[str, ...]:
    """The files that a saved run has written or will write, and may replace; none where it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return tuple(json.loads((file.metadata() or {})[METADATA_KEY])["outputs"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return ()


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
