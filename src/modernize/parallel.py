"""Many processes, one model: what `torchrun` starts, on PyTorch's own engines and with nothing of ours between.

Every process draws the whole batch by the same seed and takes its share of it, so what is seen doesn't depend on how
many there are. DDP holds the model in each of them; `fully_shard` (FSDP2) holds a part of it.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from modernize.choices import DeviceName
from modernize.devices import choose_device, multiplies_bfloat16
from modernize.errors import OneProcess, ProcessFailed
from modernize.model import ModernGPT
from modernize.spec import State

_LEFT = ("Connection closed by peer", "Connection reset by peer")  # as gloo says it
LONGEST_WAIT = timedelta(days=1)  # for text that is tokenized; the launcher ends all when one process is gone


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes that train together; `local` is this one's number on its machine."""

    rank: int = 0
    size: int = 1
    local: int = 0
    patient: distributed.ProcessGroup | None = None  # to wait in for as long as LONGEST_WAIT

    @property
    def first(self) -> bool:
        """Whether this is the process that talks and writes."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def same(self, value: Tensor) -> Tensor:
        """What the first process has, in all of them."""
        if self.size > 1:
            distributed.broadcast(value, 0)
        return value

    def agree(self, number: float, device: torch.device) -> float:
        """The number of the first process, which others may have computed a little differently."""
        if self.size == 1:
            return number
        precise = torch.tensor(number, dtype=torch.float64, device=device)
        return float(self.same(precise).item())

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            distributed.barrier()

    @contextlib.contextmanager
    def first_alone(self) -> Iterator[None]:
        """The first process does what is in here, which may take hours; then the others do, and meet its errors."""
        if self.size == 1:
            yield
            return
        if not self.first:
            distributed.barrier(self.patient)
        try:
            yield
        finally:
            if self.first:
                distributed.barrier(self.patient)

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether it is so in any process, so that all of them do the same."""
        return flag if self.size == 1 else bool(self.total(torch.tensor(float(flag), device=device)).item())

    def bfloat16(self, device: torch.device) -> bool:
        """Whether the devices of all processes have instructions for it, so that all compute alike."""
        return not self.any(not multiplies_bfloat16(device), device)

    def share(self, batch: Tensor) -> Tensor:
        """The windows of this process of a batch (B, T), with nothing between them."""
        return batch[self.rank :: self.size].contiguous()


@contextlib.contextmanager
def join(device: DeviceName) -> Iterator[World]:
    """Join the processes that torchrun started, or be alone.

    Raises OneProcess where a machine has fewer GPUs than processes, ProcessFailed where another of them has left.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield World()
        return
    world = World(
        rank=int(os.environ["RANK"]), size=int(os.environ["WORLD_SIZE"]), local=int(os.environ.get("LOCAL_RANK", "0"))
    )
    cuda = choose_device(device).type == "cuda"
    if cuda and world.local >= torch.cuda.device_count():
        raise OneProcess(
            f"there are more processes than the {torch.cuda.device_count()} GPUs of this machine",
            hint="use --nproc-per-node gpu, or --device cpu",
        )
    if cuda:
        torch.cuda.set_device(world.local)
    try:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
        yield replace(world, patient=distributed.new_group(backend="gloo", timeout=LONGEST_WAIT))
    except RuntimeError as error:  # the group is left as it is: to take it down would wait for those who wait for us
        if isinstance(error, distributed.DistError) or any(words in str(error) for words in _LEFT):
            raise ProcessFailed(
                "another of the processes has failed, so this one stops", hint="see what that one says"
            ) from error
        raise
    distributed.destroy_process_group()


def spread(objective: nn.Module, model: ModernGPT, world: World, device: torch.device, *, shard: bool) -> nn.Module:
    """The module to call in place of `objective`, which holds `model`: in every process, or cut up over them.

    A model that is cut up may lie on the CPU, from which its parts go to the device.
    """
    if world.size == 1:
        return objective
    if not shard:
        own = next(model.parameters()).device
        return DistributedDataParallel(objective, device_ids=[own.index] if own.type == "cuda" else None)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (world.size,))
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    for method in ("predict", "look"):
        register_fsdp_forward_method(objective, method)
    return objective


@contextlib.contextmanager
def together(module: nn.Module, *, last: bool) -> Iterator[None]:
    """Around the forward and backward pass of one of several batches: gradients are exchanged with the last of them."""
    if isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
        return
    exchange = getattr(module, "set_requires_gradient_sync", None)  # of FSDP2
    if exchange:
        exchange(last)
    yield


def whole(state: State, world: World) -> State:
    """Tensors with all of their parts, on the CPU of the first process. All take part, the others get nothing."""
    found = {}
    for name, tensor in state.items():
        full = _whole(tensor)
        if world.first:
            found[name] = full.detach().cpu()
    return found


def is_cut(model: nn.Module) -> bool:
    """Whether there is only a part of the parameters here."""
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def _whole(tensor: Tensor) -> Tensor:
    full = getattr(tensor, "full_tensor", None)  # of a DTensor
    return full() if full else tensor


def fill(state: State, values: State) -> None:
    """Copy whole tensors into those of a State, or into the parts of them that are here."""
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(_cut_like(tensor, values[name]))


def like(model: nn.Module, values: State) -> State:
    """What belongs to parameters, as `parameter:what`, cut up as these are; single numbers stay as they are."""
    own = dict(model.named_parameters())
    return {name: _cut_like(own[name.split(":")[0]], value) if value.ndim else value for name, value in values.items()}


def _cut_like(tensor: Tensor, value: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor, distribute_tensor

    value = value.to(tensor.device)
    if isinstance(tensor, DTensor):
        return distribute_tensor(value, tensor.device_mesh, tensor.placements)
    return value


def norm_of(value: Tensor) -> float:
    """A norm as a number, also of parts."""
    return float(_whole(value))
