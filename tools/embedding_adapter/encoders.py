"""What turns texts into vectors in the comparison: Orthrus' engine in this process, however it is set up."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from orthrus_backend.assembly import Service, build_service
from orthrus_backend.config import EngineSettings
from orthrus_backend.outputs import Embedded, Output
from orthrus_backend.params import EmbeddingParams

_WAITING = 512  # texts that are handed to the engine at a time


@dataclass(frozen=True, slots=True)
class Encoder:
    """A running engine."""

    service: Service

    def __call__(self, texts: Sequence[str], params: EmbeddingParams, name: str) -> NDArray[np.float32]:
        """[len(texts), D], as the parameters say; `name` stands before the progress bar.

        Raises:
            RuntimeError: the engine ended a text without a vector.
        """
        vectors: list[NDArray[np.float32]] = []
        with tqdm(total=len(texts), desc=name, unit="texts") as bar:
            for start in range(0, len(texts), _WAITING):
                part = texts[start : start + _WAITING]
                vectors += self._embed(part, params)
                bar.update(len(part))
        return np.stack(vectors)

    def _embed(self, texts: Sequence[str], params: EmbeddingParams) -> list[NDArray[np.float32]]:
        waiting = []
        for text in texts:
            request = self.service.intake.embed(text, params)
            request.reply = waiting_for = _Waiting(Future())
            waiting.append(waiting_for)
            self.service.engine.submit([request])
        return [one.vector.result() for one in waiting]


@contextmanager
def encoder(**parameters: str) -> Iterator[Encoder]:
    """An engine with these parameters of the model `orthrus`, from when it is loaded to the end of the block."""
    service = build_service(EngineSettings.from_parameters(parameters))
    try:
        yield Encoder(service)
    finally:
        service.close()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Takes a text's only answer."""

    vector: "Future[NDArray[np.float32]]"

    def deliver(self, output: Output) -> None:
        if isinstance(output, Embedded):
            self.vector.set_result(output.vector)
        else:
            self.abort(str(output))

    def abort(self, message: str) -> None:
        self.vector.set_exception(RuntimeError(message))

    def cancelled(self) -> bool:
        return False
