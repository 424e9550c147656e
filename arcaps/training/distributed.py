"""One process or many: what `torchrun` started, and the few things that processes do together."""

import atexit
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from arcaps.errors import ArcapsError


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is, and the device it computes on."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """True on rank 0, which writes and logs."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on each of them."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """The values of every process, on each of them."""
        if self.world == 1:
            return [values]
        own = values.to(self.device)
        gathered = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(gathered, own)
        return [value.cpu() for value in gathered]

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Write the values that rank 0 has into these tensors, on every rank."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def broadcast(self, text: str) -> str:
        """The text of rank 0, on every rank, after rank 0 has come this far."""
        box = [text]
        if self.world > 1:
            dist.broadcast_object_list(box)
        return box[0]


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one."""
    if not isinstance(name, str | torch.device):
        raise ArcapsError(f"device is {name!r}: give a name, such as cpu or cuda:1")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    known = {"gpu": "cuda", "nvidia": "cuda", "apple": "mps", "metal": "mps"}
    try:
        device = torch.device(name)
    except RuntimeError:
        meant = known.get(name.lower())
        hint = f"did you mean {meant!r}? " if meant else ""
        raise ArcapsError(f"unknown device {name!r}: {hint}there are auto, cpu, cuda, cuda:1, mps") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArcapsError(f"device is {name}, and there is no CUDA GPU here: give --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ArcapsError(f"device is {name}, and there are {torch.cuda.device_count()} GPUs: give --device cuda:0")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ArcapsError(f"device is {name}, and there is no Apple GPU here: give --device cpu")
    if device.type not in ("cpu", "cuda", "mps"):
        raise ArcapsError(f"device is {name}, on which arcaps does not compute: give --device cpu, cuda or mps")
    return device


def join_processes(device: str = "auto") -> Processes:
    """Join the processes that `torchrun` started, if it did: gloo on CPUs, nccl on GPUs."""
    chosen = choose_device(device)
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        return Processes(0, 1, chosen)
    if not dist.is_initialized():
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    return Processes(dist.get_rank(), world, chosen)
