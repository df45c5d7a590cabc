"""A Hugging Face directory: `config.json` with `model.safetensors` or `pytorch_model.bin`."""

import json
from pathlib import Path
from typing import Any

from modernize.checkpoint.base import Checkpoint
from modernize.checkpoint.envelope import assemble
from modernize.checkpoint.kinds import Kind, kind_of
from modernize.checkpoint.safetensors_file import SafetensorsSource
from modernize.checkpoint.torch_file import load_torch
from modernize.errors import UnreadableFile

HF_FORMAT = Kind.FOLDER.value
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # the first that is there is read
CONFIG = "config.json"


def open_hf_folder(path: Path) -> Checkpoint:
    """Open a folder; code that lies in it is never looked at. Raises UnreadableFile for what is missing or damaged."""
    config = _config(path)
    there = [name for name in WEIGHT_FILES if (path / name).is_file()]
    if not there:
        raise _no_weights(path)
    file, warnings = path / there[0], []
    if len(there) > 1:
        warnings.append(f"{path} holds {there[0]} and {there[1]}; {there[0]} was read")
    if kind_of(file) is Kind.SAFETENSORS:
        return assemble(
            path,
            format=HF_FORMAT,
            file=file,
            source=SafetensorsSource(file),
            notes={CONFIG: config},
            warnings=tuple(warnings),
        )
    root = load_torch(file, legacy=kind_of(file) is Kind.TORCH_LEGACY)
    return assemble(
        path,
        format=HF_FORMAT,
        file=file,
        source=root.choose("model"),
        notes={CONFIG: config},
        warnings=tuple(warnings),
    )


def files_of(path: Path) -> tuple[Path, ...]:
    """The files that a checkpoint is read from: of a folder those that are there, else the file itself."""
    if not path.is_dir():
        return (path,)
    return tuple(path / name for name in (CONFIG, *WEIGHT_FILES) if (path / name).exists())


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if any(path.glob("*.distcp")) or (path / ".metadata").exists():
            raise UnreadableFile(
                f"{path} is a distributed checkpoint (.distcp shards)",
                hint="gather it with `python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR FILE`",
            ) from error
        raise UnreadableFile(
            f"{path} is a folder without {CONFIG}",
            hint="give the checkpoint file itself, or a Hugging Face folder",
        ) from error
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{path / CONFIG} cannot be read: {error}", hint="download it again") from error
    if not isinstance(config, dict):
        raise UnreadableFile(f"{path / CONFIG} is no JSON object", hint="download it again")
    return config


def _no_weights(path: Path) -> UnreadableFile:
    for name in WEIGHT_FILES:
        if (path / f"{name}.index.json").exists():
            return UnreadableFile(
                f"{path} holds a sharded model ({name}.index.json), and only models in one file can be read",
                hint='put it into one file: model.save_pretrained(DIR, max_shard_size="1TB")',
            )
    return UnreadableFile(
        f"{path} has a {CONFIG} but neither {' nor '.join(WEIGHT_FILES)}", hint="download the weights as well"
    )
