"""What a benchmark was measured on."""

import platform
from pathlib import Path

import torch

from modernize.devices import multiplies_bfloat16


def machine() -> str:
    """Processor and its instructions, or card, threads, and versions."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        more = ", bfloat16" if multiplies_bfloat16(torch.device("cpu")) else ""
        capability = torch.backends.cpu.get_cpu_capability()
        device = f"{_processor()} ({capability}{more}), {torch.get_num_threads()} threads"
    return f"{device}, {platform.system()}, Python {platform.python_version()}, torch {torch.__version__}"


def _processor() -> str:
    there = Path("/proc/cpuinfo")
    lines = there.read_text(encoding="utf-8").splitlines() if there.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
