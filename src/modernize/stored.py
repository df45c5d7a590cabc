"""What a modern file's metadata says; the inverse of what `write.py` puts there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modernize.checkpoint import Checkpoint
from modernize.checkpoint.faults import quoted, shown
from modernize.errors import UnreadableFile
from modernize.spec import FLOATS, ModernConfig

METADATA_KEY = "modernize"
RUN_KEY = "modernize_run"  # of a run that was saved: see `resume`
SCHEMA = 1  # of what stands under it


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The configuration of a modern file, where it came from, and its vocabulary (empty where it carries none)."""

    config: ModernConfig
    sha256: str
    dialect: str
    facts: Mapping[str, Any]  # of the old model, by the fields of `Facts`
    init: str
    calibration: Mapping[str, Any] | None  # how a retrofit went
    version: str
    vocabulary: Mapping[str, int]
    history: tuple[Mapping[str, Any], ...]  # an entry for each fine-tune


def check_no_run(checkpoint: Checkpoint) -> None:
    """Whether it is a model, and not a run that `finetune` saved. Raises UnreadableFile."""
    if RUN_KEY in checkpoint.metadata:
        raise UnreadableFile(
            f"{checkpoint.path} is a run that was saved, not a model",
            hint="the command that began it goes on with --resume, and its output is the model",
        )


def stored_in(checkpoint: Checkpoint) -> Stored | None:
    """What the metadata says, or None for a file that modernize did not write.

    Raises UnreadableFile where metadata and tensors contradict each other.
    """
    check_no_run(checkpoint)
    text = checkpoint.metadata.get(METADATA_KEY)
    if text is None:
        return None
    try:
        plain = {"schema": None, "calibration": None, **json.loads(text)}
        stored = Stored(
            config=_config(plain["config"], len(checkpoint.tensors)),
            sha256=str(plain["source"]["sha256"]),
            dialect=str(plain["source"]["dialect"]),
            facts=_facts(plain["source"].get("facts", {})),  # which the first files don't have
            init=str(plain["init"]),
            calibration=None if plain["calibration"] is None else dict(plain["calibration"]),
            version=str(plain["version"]),
            vocabulary={str(token): int(index) for token, index in plain["vocabulary"].items()},
            history=tuple(map(_run, plain["finetunes"])),
        )
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UnreadableFile(
            f"{checkpoint.path} has modernize metadata that cannot be understood: {shown(repr(error))}",
            hint="convert the old checkpoint again",
        ) from error
    if plain["schema"] != SCHEMA:
        raise UnreadableFile(
            f"{checkpoint.path} has metadata of schema {quoted(plain['schema'])}, and this version reads {SCHEMA}",
            hint="use the version of modernize that wrote it, or convert the old checkpoint again",
        )
    for name, info in checkpoint.tensors.items():
        if info.dtype not in FLOATS:
            raise UnreadableFile(
                f"{checkpoint.path}: {name} is {info.dtype}, where one of {', '.join(FLOATS)} was expected",
                hint="convert the old checkpoint again",
            )
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    wanted = stored.config.shapes()
    if shapes != wanted:
        wrong = next(name for name in (*wanted, *shapes) if shapes.get(name) != wanted.get(name))
        raise UnreadableFile(
            f"{checkpoint.path}: {wrong} does not fit the configuration in its metadata",
            hint="convert the old checkpoint again",
        )
    return stored


def _config(plain: Mapping[str, Any], tensors: int) -> ModernConfig:
    """The configuration of a file with so many tensors, of which every layer has some. Raises ValueError and others."""
    config = ModernConfig.from_json(plain)
    if config.n_layer > tensors:
        raise ValueError(f"n_layer is {config.n_layer}, and there are {tensors} tensors")
    return config


def _facts(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Facts`, of their types. Raises TypeError for others."""
    for name, value in plain.items():
        kinds = {"n_head": int, "norm_eps": float}.get(name, str)
        if not isinstance(value, kinds | None) or isinstance(value, bool):
            raise TypeError(f"{name} is {quoted(value)}")
    return dict(plain)


def _run(plain: Mapping[str, Any]) -> dict[str, Any]:
    """One fine-tune. Raises TypeError where its losses are none."""
    if not isinstance(plain.get("loss"), dict | None):
        raise TypeError(f"loss is {quoted(plain['loss'])}")
    return dict(plain)
