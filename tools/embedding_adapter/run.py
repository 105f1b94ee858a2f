"""One training run in its folder: student, teacher, optimizer, and how far it has come."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from orthrus_backend.default_model import ensure_default_model
from orthrus_backend.model import resolve_dtype
from tools.embedding_adapter.batches import Batches
from tools.embedding_adapter.loss import losses
from tools.embedding_adapter.student import PoolingName, Student
from tools.embedding_adapter.teacher import teacher_folder

WARMUP = 0.06  # share of the steps
SAVE_EVERY = 20  # steps


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made of; a folder goes on only with the same."""

    steps: int
    batch: int
    rank: int
    pooling: PoolingName
    learning_rate: float
    distillation: float
    longest: int
    seed: int
    prompt: str  # before every text
    weights: Mapping[str, float]  # of the sources
    start: str = ""  # folder of an adapter to begin with


class Run:
    """Trains from where the folder's checkpoint is, or from the beginning."""

    def __init__(self, folder: Path, settings: Settings, batches: Batches) -> None:
        """Raises `ValueError` where the folder was begun with other settings."""
        folder.mkdir(parents=True, exist_ok=True)
        self._checkpoint = folder / "checkpoint.pt"
        self._log = folder / "log.jsonl"
        self._settings = settings
        self._batches = batches
        torch.manual_seed(settings.seed)
        self.student = Student(
            ensure_default_model(), settings.rank, settings.pooling, settings.longest, settings.prompt
        )
        if settings.start:
            self.student.start_from(Path(settings.start))
        precision = {"dtype": resolve_dtype("auto", torch.device("cpu"))}
        self._teacher = SentenceTransformer(str(teacher_folder()), device="cpu", model_kwargs=precision)
        self._trained = {name: value for name, value in self.student.named_parameters() if value.requires_grad}
        self._optimizer = torch.optim.AdamW(self._trained.values(), lr=settings.learning_rate, weight_decay=0.0)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._rate)
        self._done = 0
        self._load()

    def go_on(self, until: int | None = None) -> None:
        """Run the steps that are left, or those up to `until`, keeping a checkpoint every few."""
        last = self._settings.steps if until is None else until
        with (
            self._log.open("a", encoding="utf-8") as log,
            tqdm(total=self._settings.steps, initial=self._done, unit="step") as bar,
        ):
            while self._done < last:
                line = self._step(self._done)
                self._done += 1
                log.write(json.dumps(line) + "\n")
                log.flush()
                bar.set_postfix({"loss": line["contrastive"], "first": line["first"]})
                bar.update()
                if self._done % SAVE_EVERY == 0 or self._done == last:
                    self._save()

    def _step(self, number: int) -> dict[str, Any]:
        started = time.perf_counter()
        source, pairs = self._batches[number]
        texts = [pair.query for pair in pairs] + [pair.document for pair in pairs]
        teacher = torch.from_numpy(self._teacher.encode(texts, normalize_embeddings=True, show_progress_bar=False))
        parts = losses(self.student(texts), teacher.float())
        loss = parts.contrastive + self._settings.distillation * parts.distillation
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained.values(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        return {
            "step": number,
            "source": source,
            "contrastive": round(parts.contrastive.item(), 4),
            "distillation": round(parts.distillation.item(), 4),
            "first": round(parts.first, 3),
            "seconds": round(time.perf_counter() - started, 2),
        }

    def _rate(self, step: int) -> float:
        """Linear warm-up, then half a cosine down to nothing."""
        warmup = max(1, round(WARMUP * self._settings.steps))
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self._settings.steps - warmup)))

    def _save(self) -> None:
        partial = self._checkpoint.with_suffix(".partial")
        torch.save(
            {
                "settings": asdict(self._settings),
                "done": self._done,
                "trained": self._trained,
                "optimizer": self._optimizer.state_dict(),
                "schedule": self._schedule.state_dict(),
            },
            partial,
        )
        partial.replace(self._checkpoint)

    def _load(self) -> None:
        if not self._checkpoint.is_file():
            self._log.unlink(missing_ok=True)
            return
        state = torch.load(self._checkpoint, weights_only=True)
        if state["settings"] != asdict(self._settings):
            raise ValueError(f"{self._checkpoint.parent} was begun with other settings: {state['settings']}")
        self._done = state["done"]
        with torch.no_grad():
            for name, value in self._trained.items():
                value.copy_(state["trained"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        lines = self._log.read_text(encoding="utf-8").splitlines(keepends=True)
        self._log.write_text("".join(lines[: self._done]), encoding="utf-8")
