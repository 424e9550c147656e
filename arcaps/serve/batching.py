"""Batching without a timer: what waits while the model is busy is answered together."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

Answers: TypeAlias = Mapping[str, NDArray[np.float32]]
"""The outputs of a model by name."""
Model: TypeAlias = Callable[[NDArray[np.float32]], Answers]
"""From images (batch, channels, height, width) to outputs whose first axis is the batch."""
Waiting: TypeAlias = tuple[NDArray[np.float32], asyncio.Future[Answers]]
"""An image, and where its answer goes."""


class Batcher:
    """Answers images with a model that runs in one thread of its own.

    An image that comes while the model is free is answered at once, alone. Images that come while it is busy wait,
    and are answered together as soon as it is free: at most `limit` at a time, the oldest first.
    """

    def __init__(self, model: Model, *, limit: int) -> None:
        self.model, self.limit = model, limit
        self.waiting: deque[Waiting] = deque()
        self.thread = ThreadPoolExecutor(1, "model")
        self.work: asyncio.Task[None] | None = None
        self.answered = self.batches = 0

    async def __call__(self, image: Float32[np.ndarray, "channels height width"]) -> Answers:
        """Wait for the answer to one image: the model's outputs without the axis of the batch."""
        answer: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self.waiting.append((image, answer))
        if self.work is None:
            self.work = asyncio.create_task(self.answer_all())
        return await answer

    async def answer_all(self) -> None:
        """Answer batch after batch until nothing waits."""
        try:
            while self.waiting:
                await self.answer(self.take())
        finally:
            self.work = None

    def take(self) -> list[Waiting]:
        """The next batch. Images whose request was given up are left out."""
        taken: list[Waiting] = []
        while self.waiting and len(taken) < self.limit:
            image, answer = self.waiting.popleft()
            if not answer.done():
                taken.append((image, answer))
        return taken

    async def answer(self, batch: list[Waiting]) -> None:
        """Run the model on a batch, and hand each image its part of the outputs."""
        if not batch:
            return
        images = np.stack([image for image, _ in batch])
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(self.thread, self.model, images)
        except Exception as error:  # whatever the model raises belongs to those who asked
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        self.batches += 1
        self.answered += len(batch)
        for row, (_, answer) in enumerate(batch):
            if not answer.done():
                answer.set_result({name: output[row] for name, output in outputs.items()})

    def close(self) -> None:
        """End the thread when it has finished what it is doing."""
        self.thread.shutdown(wait=False, cancel_futures=True)
