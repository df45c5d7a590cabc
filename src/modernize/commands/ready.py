"""What commands that run a model begin with: the model, and the prompt."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modernize.choices import DeviceName
from modernize.errors import UsageError

if TYPE_CHECKING:
    from modernize.console import Output
    from modernize.loading import Loaded


def load_ready(path: Path, out: "Output", *, device: DeviceName, **how: Any) -> "Loaded":  # noqa: ANN401
    """A model, ready to be measured and to write; half precision is widened, which no CPU is fast in, and float64
    narrowed for MPS, which has none.

    `how` are arguments of `load_whole`.
    """
    import torch

    from modernize.devices import choose_device
    from modernize.loading import load_whole

    loaded = load_whole(path, **how)
    out.warnings(loaded.warnings)
    where, dtype = choose_device(device), next(loaded.model.parameters()).dtype
    if dtype in (torch.float16, torch.bfloat16) or (dtype == torch.float64 and where.type == "mps"):
        loaded.model.float()
    loaded.model.to(where)
    return loaded


def prompt_of(text: str | None, ids: str | None) -> str:
    """What a sample begins with: --prompt as it is, or --prompt-ids with spaces between. Raises UsageError."""
    if (text is None) == (ids is None):
        given = "neither is given" if text is None else "both are given"
        raise UsageError(
            f"a sample begins with --prompt or with --prompt-ids, and {given}",
            hint='give --prompt TEXT, or token ids: --prompt-ids "1, 2, 3"',
        )
    if ids is None:
        return str(text)
    words = ids.replace(",", " ").split()
    strange = [word for word in words if not re.fullmatch(r"-?[0-9]{1,18}", word)]
    if strange or not words:
        raise UsageError(
            f"--prompt-ids has {strange[0]!r}, which is no token id" if words else "--prompt-ids has no token id",
            hint='give whole numbers with commas or spaces between: --prompt-ids "1, 2, 3"',
        )
    return " ".join(str(int(word)) for word in words)
