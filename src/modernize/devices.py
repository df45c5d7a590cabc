"""Device and precision, as small decisions that can be tested where the device is not."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from modernize.choices import DeviceName, PrecisionName
from modernize.errors import UsageError

WIDE = (
    256  # the width from which bfloat16 makes a step on a CPU 1.4 to 1.8 times as fast; below, casts eat most of that
)


def choose_device(name: DeviceName) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU. Raises UsageError for a device that is not there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, available in there.items() if available))
    if not there[name]:
        raise UsageError(f"--device {name}: there is no such device here", hint="leave it out, or use --device cpu")
    return torch.device(name)


def device_for_fits(name: DeviceName) -> torch.device:
    """Where a conversion is calibrated: as `choose_device`, but `auto` passes over MPS, which has no float64.

    Raises UsageError for a device that is not there, or is MPS.
    """
    if name == "mps":
        raise UsageError("--device mps: a conversion solves in float64, which MPS has not", hint="use --device cpu")
    found = choose_device(name)
    return torch.device("cpu") if found.type == "mps" else found


def choose_precision(name: PrecisionName, device: torch.device, width: int, *, bfloat16: bool) -> torch.dtype:
    """The dtype of matrix products in a model of a width, where all devices of a run have instructions for bfloat16 or
    not: unless asked, bfloat16 where it is faster, which it is on a CPU for wide models alone, and float32 elsewhere.
    """
    if name == "auto":
        return torch.bfloat16 if bfloat16 and (device.type != "cpu" or width >= WIDE) else torch.float32
    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether it is known to have instructions for it, and not only a way to emulate it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    known: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(known.get(instruction) for instruction in ("amx_bf16", "avx512_bf16"))


def emulates(device: torch.device, precision: torch.dtype) -> bool:
    """Whether a device is known to have no instructions for products in a precision, for which it takes far longer."""
    known: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    if device.type == "cpu" and known.get("architecture") != "x86_64":  # of which nothing is known here
        return False
    if precision == torch.float16:
        return device.type == "cpu" and not any(known.get(name) for name in ("amx_fp16", "avx512_fp16"))
    return precision == torch.bfloat16 and device.type in ("cpu", "cuda") and not multiplies_bfloat16(device)


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[object]:
    """Matrix products in `precision`, weights and sums in float32; nothing at all for float32."""
    if precision == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=precision)


@contextlib.contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """float32 products of a CUDA device in TF32, as long as this lasts: faster, and close enough for training."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def gradient_scaler(device: torch.device, precision: torch.dtype) -> torch.amp.GradScaler:
    """Loss scaling, which only float16 needs; disabled elsewhere."""
    return torch.amp.GradScaler(device.type, enabled=precision == torch.float16)


def has_fused_adamw(device: torch.device) -> bool:
    """Whether AdamW has a fused kernel there."""
    return device.type in ("cuda", "cpu", "mps")


def should_compile(option: bool | None, device: torch.device) -> bool:
    """`torch.compile` by default on CUDA, where it pays within a few dozen steps."""
    return device.type == "cuda" if option is None else option


def transfer(batch: Tensor, device: torch.device) -> Tensor:
    """To the device; for CUDA from pinned memory and without waiting."""
    if device.type == "cuda":
        return batch.pin_memory().to(device, non_blocking=True)
    return batch.to(device)
