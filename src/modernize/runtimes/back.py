"""Load an export back: every bit of every tensor, and, where `transformers` is installed, what the model computes."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch

from modernize.errors import OutputRefused
from modernize.model import ModernGPT
from modernize.runtimes.folder import CONFIG, weight_files
from modernize.spec import State

CLOSE = 1e-4  # of logits, or of the largest of them where that is more than one
OLDEST = (4, 54)  # version of transformers that has an Arcee
LOOKED_AT = (2, 64)  # sequences of so many tokens


def check_files(folder: Path, config: Mapping[str, Any], tensors: State) -> None:
    """Raise OutputRefused where the folder does not hold these settings and these tensors, bit by bit."""
    if json.loads((folder / CONFIG).read_text("utf-8")) != config:
        raise _differs(CONFIG)
    left = dict(tensors)
    for path in weight_files(folder):
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (it is no mapping)
                wanted, found = left.pop(name, None), file.get_tensor(name)
                if wanted is None or found.dtype != wanted.dtype or not torch.equal(found, wanted):
                    raise _differs(name)
    if left:
        raise _differs(next(iter(left)))


def check_logits(folder: Path, model: ModernGPT) -> str:
    """The version of `transformers` that loaded the folder and gave the model's logits; empty where there is none, or
    one from before OLDEST.

    Raises OutputRefused where they differ, or where it cannot load the folder.
    """
    try:
        import transformers
    except ImportError:
        return ""
    if tuple(int(part) for part in re.findall(r"\d+", transformers.__version__)[:2]) < OLDEST:
        return ""
    random = torch.Generator().manual_seed(0)
    batch, length = LOOKED_AT
    ids = torch.randint(0, model.vocab_size, (batch, min(length, model.block_size)), generator=random)
    try:
        with _quietly(transformers.logging):
            theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    except Exception as error:  # whatever a version of it finds wrong with a folder
        raise OutputRefused(
            f"transformers {transformers.__version__} cannot load the export: {error}",
            hint="it needs transformers 4.54 or newer: pip install -U transformers",
        ) from error
    with torch.inference_mode():
        wanted, found = model(ids), theirs.eval()(ids).logits
    off = float((wanted - found).abs().max())
    if not off <= CLOSE * max(1.0, float(wanted.abs().max())):
        raise OutputRefused(
            f"transformers {transformers.__version__} gives other logits for the export, by {off:.3g}",
            hint="please report this, with the model's configuration",
        )
    return str(transformers.__version__)


@contextlib.contextmanager
def _quietly(logging: Any) -> Iterator[None]:  # noqa: ANN401  (transformers' own, which has no types)
    """Nothing but errors from `transformers`, and no bars."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _differs(name: str) -> OutputRefused:
    return OutputRefused(f"what was written for {name} reads back differently", hint="check the disk, and try again")
