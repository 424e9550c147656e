"""One process or many: what `torchrun` started, and the few things that processes do together."""

import atexit
import os
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
        """Whether this is the one that writes and talks."""
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

    def from_first(self, text: str) -> str:
        """The first process's text, on each of them, after it has got this far."""
        box = [text]
        if self.world > 1:
            dist.broadcast_object_list(box)
        return box[0]


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ArcapsError("device is cuda, and there is none here: give --device cpu")
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device(name)


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
