"""A device that is not the CPU, made of the CPU, for what must hold on every device.

Its tensors say that they live on `card:0`, hold their numbers in a tensor of the CPU, and refuse to be mixed with those
of the CPU as a GPU's do. `python tests/card.py` runs the command line once for each line of arguments (JSON) that it
reads, and writes a line of JSON for each: code, out, err, and how many calls the card has had so far. It is a process
of its own, since torch takes in one such device for good.
"""

import contextlib
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME = "card"
COUNT = {"calls": 0}  # with tensors of the card
ATEN = torch.ops.aten
ACROSS = (ATEN._to_copy.default, ATEN.copy_.default)  # from one device to another
INDEXING = (ATEN.index.Tensor, ATEN.index_put_.default, ATEN._index_put_impl_.default)  # a GPU takes indices of the CPU


class Card(Tensor):
    """A tensor of the card, around one of the CPU."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Card":
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    def __init__(self, inner: Tensor) -> None: ...

    @classmethod
    def __torch_dispatch__(cls, call, types, args=(), kwargs=None):
        return compute(call, args, kwargs or {})

    def tolist(self) -> Any:
        return self.detach().inner.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    __array__ = numpy


class Everywhere(TorchDispatchMode):
    """Tensors that are made on the card, or brought there, are the card's."""

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        return compute(call, args, kwargs or {})


def compute(call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Do on the CPU what is asked of the card. Raises RuntimeError where tensors of both are mixed."""
    if call is ATEN._fused_sdp_choice.default:
        return 0  # attention as its formula says, which is the one way that every device has
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    cards = [tensor for tensor in tensors if isinstance(tensor, Card)]
    COUNT["calls"] += bool(cards)
    strangers = [tensor for tensor in tensors if not isinstance(tensor, Card) and tensor.dim()]
    indexed = call in INDEXING and isinstance(args[0], Card)
    if cards and strangers and not indexed and call not in ACROSS:
        raise RuntimeError(f"{call}: a tensor {tuple(strangers[0].shape)} of the CPU is among those of the card")
    inner_args, inner_kwargs = tree_map(lambda leaf: leaf.inner if isinstance(leaf, Card) else leaf, (args, kwargs))
    device = kwargs.get("device")
    made_there = device is not None and torch.device(device).type == NAME
    if made_there:
        inner_kwargs["device"] = torch.device("cpu")
    result = call(*inner_args, **inner_kwargs)
    if call is ATEN.copy_.default:
        return args[0]
    if not made_there and (device is not None or not cards):
        return result.clone() if result is inner_args[0] else result
    wrapped = tree_map(lambda leaf: Card(leaf) if isinstance(leaf, Tensor) else leaf, result)
    return return_and_correct_aliasing(call, args, kwargs, wrapped) if cards else wrapped


class _Module:
    """What torch asks of a kind of device."""

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None: ...


def _without_gradients(mode: Any = True) -> Any:
    """In place of inference mode, in which tensors of this kind can't be looked at in part."""
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else contextlib.nullcontext()


def main() -> None:
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    torch.inference_mode = _without_gradients
    torch.__future__.set_swap_module_params_on_conversion(True)  # else a tied head comes apart on its way there
    from modernize import devices

    devices.choose_device = devices.device_for_fits = lambda name: torch.device("cpu" if name == "cpu" else NAME)
    devices.has_fused_adamw = lambda device: False
    from modernize import cli

    for line in sys.stdin:
        sys.argv = ["modernize", *json.loads(line)]
        out, err, code = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), Everywhere():
            try:
                cli.main()
            except SystemExit as end:
                code = int(end.code or 0)
        said = {"code": code, "out": out.getvalue(), "err": err.getvalue(), **COUNT}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
