"""What to say where memory runs out, and how a CPU keeps what it has."""

import ctypes
import os
import sys

import torch

from modernize.errors import OutOfMemory
from modernize.events import Settings

_SAID = (
    "can't allocate memory",  # by the CPU's allocator
    "CUDA error: out of memory",  # by the driver: a context, or pinned memory
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",  # by NCCL
)


_SAID_BY_USER = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # of glibc's mallopt


def keep_freed_memory(device: torch.device) -> bool:
    """Have this process keep memory that is freed, where it trains on the CPU. Gives whether glibc was asked to.

    A step frees and asks for the same large blocks again and again. glibc gives them back to the system at once, which
    clears every page for the next step: 600,000 of them in a step of GPT-2 small. The whole process is changed by it,
    so a command does it and a library does not, and what the environment says of it is left. Blocks that another
    thread asks for are given back as before. Numbers of the parameters: man 3 mallopt.
    """
    if device.type != "cpu" or sys.platform != "linux" or any(name in os.environ for name in _SAID_BY_USER):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the CPU, had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)


def too_large(settings: Settings, device: torch.device, processes: int) -> OutOfMemory:
    """Of a step: half the batch is offered, gone through twice as often, or shorter windows where there is no half."""
    half = settings.batch_size // 2 if settings.batch_size // 2 >= processes else 0
    smaller = (
        f"--batch-size {half} --grad-accum {2 * settings.grad_accum}"
        if half
        else f"--block-size {max(1, settings.block_size // 2)}"
    )
    return OutOfMemory(
        f"there is not enough memory on {device.type} for {settings.batch_size} windows of "
        f"{settings.block_size} tokens",
        hint=f"try {smaller}, or --activation-checkpointing",
    )
