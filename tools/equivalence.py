"""Prints how far embeddings computed in chunks are from those computed in one pass (the paper's Table 7).

Responsible for the texts, for both ways of computing, and for the table. Texts are pieces of Python's own documentation
(`pydoc_data.topics`), which every machine with Python has; their lengths are spread evenly by ratio from 16 tokens to
`--longest`. The chunked way is the server's: its scheduler forms the steps, keys and values of earlier chunks come from
the paged cache, the pooler carries its state. The other way runs each text whole and pools by the formula, in float64.
Knows nothing of the server around the engine.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pydoc_data.topics import topics
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch import Tensor
from tqdm import tqdm

from orthrus_backend.assembly import load_model
from orthrus_backend.attention.backend import AttentionBackend
from orthrus_backend.batch import build_batch
from orthrus_backend.blocks import BlockPool
from orthrus_backend.config import EngineSettings, ModelSettings, SchedulerSettings
from orthrus_backend.default_model import ensure_default_model
from orthrus_backend.kv_cache import KVCache
from orthrus_backend.model import Backbone
from orthrus_backend.outputs import Embedded, StepResult
from orthrus_backend.params import PoolingMode
from orthrus_backend.plan import Plan, Slice
from orthrus_backend.pooling import pool_slices
from orthrus_backend.request import EmbedRequest
from orthrus_backend.scheduling.scheduler import Scheduler
from orthrus_backend.tokenization import Tokenization

POOLINGS: tuple[PoolingMode, ...] = ("mean", "cls", "weighted_mean")
SHORTEST = 16  # tokens
LEAST_COSINE = 0.9999
MOST_ERROR = {"bfloat16": 1e-2, "float16": 1e-2, "float32": 1e-5}  # relative L2

DtypeName = Literal["bfloat16", "float16", "float32"]
Vectors = dict[PoolingMode, npt.NDArray[np.float64]]  # [texts, d] each
Progress = Callable[[int], object]  # takes tokens that are done


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    dtype: DtypeName
    pooling: PoolingMode
    chunk: int
    min_cosine: float
    mean_error: float  # relative L2
    p99_error: float

    @property
    def holds(self) -> bool:
        """Whether it is within the bounds; NaN is not."""
        worst = max(self.mean_error, self.p99_error)
        return self.min_cosine > LEAST_COSINE and worst < MOST_ERROR[self.dtype]


def make_texts(tokenization: Tokenization, count: int, longest: int) -> list[list[int]]:
    """Token ids of `count` pieces of Python's documentation, from `SHORTEST` to `longest` tokens, shortest first.

    Raises:
        ValueError: there is not that much text, or `longest` is below `SHORTEST`.
    """
    ids = tokenization.encode("\n\n".join(topics[name] for name in sorted(topics)), special=False)
    if not SHORTEST <= longest <= len(ids):
        raise ValueError(f"longest {longest} is not between {SHORTEST} and the {len(ids)} tokens that there are")
    lengths = np.geomspace(SHORTEST, longest, count).round().astype(int).tolist()
    starts = np.linspace(0, len(ids) - longest, count).astype(int).tolist()
    return [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def embed_whole(
    backbone: Backbone, attention: AttentionBackend, cache: KVCache, texts: Sequence[list[int]], done: Progress
) -> Vectors:
    """Each text in one pass of its own."""
    vectors: dict[PoolingMode, list[npt.NDArray[np.float64]]] = {mode: [] for mode in POOLINGS}
    for ids in texts:
        hidden = _hidden(backbone, attention, cache, Plan((Slice(_request(ids), 0, len(ids)),))).double()  # [n, d]
        position = torch.arange(1, len(ids) + 1, device=hidden.device).double()
        pooled = {"mean": hidden.mean(0), "cls": hidden[0], "weighted_mean": position @ hidden / position.sum()}
        for mode in POOLINGS:
            vectors[mode].append(pooled[mode].cpu().numpy())
        done(len(ids))
    return {mode: np.stack(found) for mode, found in vectors.items()}


def embed_chunked(
    backbone: Backbone,
    attention: AttentionBackend,
    cache: KVCache,
    texts: Sequence[list[int]],
    chunk: int,
    done: Progress,
) -> Vectors:
    """All texts through the scheduler, in steps and chunks of at most `chunk` tokens."""
    blocks = cache.keys[0].shape[0] // cache.block_size
    settings = SchedulerSettings(policy="fcfs", token_budget=chunk, chunk_size=chunk, max_running=1)
    scheduler = Scheduler(settings, BlockPool(blocks, cache.block_size))
    requests = [_request(ids) for ids in texts]
    for request in requests:
        scheduler.check_admissible(request)
        scheduler.add(request)
    found: dict[int, npt.NDArray[np.float32]] = {}  # [3 d] each: all modes, one after the other
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        hidden = _hidden(backbone, attention, cache, plan)
        for output in scheduler.commit(plan, StepResult([], *pool_slices(hidden, plan.embeds)), 0.0):
            assert isinstance(output, Embedded)
            found[output.request.order] = output.vector
        done(plan.tokens)
    vectors = np.stack([found[request.order] for request in requests]).astype(np.float64)  # [texts, 3 d]
    return dict(zip(POOLINGS, np.split(vectors, len(POOLINGS), axis=1), strict=True))


def compare(whole: npt.NDArray[np.float64], chunked: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Least cosine, mean and 99th percentile of the relative L2 error, over rows [texts, d]."""
    norms = np.linalg.norm(whole, axis=1)
    cosines = (whole * chunked).sum(1) / norms / np.linalg.norm(chunked, axis=1)
    errors = np.linalg.norm(chunked - whole, axis=1) / norms
    return float(cosines.min()), float(errors.mean()), float(np.quantile(errors, 0.99))


def measure(location: str, dtype: DtypeName, count: int, longest: int, chunks: Sequence[int]) -> Iterator[Row]:
    """The lines of one number format; progress goes to stderr.

    Raises:
        ValueError: the model cannot be loaded, or does not take texts of that length.
    """
    model = load_model(location, EngineSettings(model=ModelSettings(dtype=dtype)))
    backbone = model.backbone
    if longest > backbone.limit:
        raise ValueError(f"longest {longest} is above the model's limit of {backbone.limit} tokens")
    attention, shapes = model.computation.attention, model.shapes
    texts = make_texts(model.tokenization, count, longest)
    # one text holds blocks at a time, or two where a step ends one and begins the next
    blocks = 2 * -(-longest // attention.block_size)
    cache = KVCache(shapes, blocks, attention.block_size, backbone.dtype, backbone.device)
    tokens = sum(map(len, texts))
    with tqdm(total=tokens * (1 + len(chunks)), desc=dtype, unit="tokens", unit_scale=True) as bar:
        whole = embed_whole(backbone, attention, cache, texts, bar.update)
        for chunk in chunks:
            chunked = embed_chunked(backbone, attention, cache, texts, chunk, bar.update)
            for mode in POOLINGS:
                yield Row(dtype, mode, chunk, *compare(whole[mode], chunked[mode]))


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| dtype | pooling | chunk | min cosine | mean rel. L2 | p99 rel. L2 |", "|---|---|---:|---:|---:|---:|"]
    lines += [
        f"| {r.dtype} | {r.pooling} | {r.chunk} | {r.min_cosine:.8f} | {r.mean_error:.2e} | {r.p99_error:.2e} |"
        for r in rows
    ]
    return "\n".join(lines)


def main(
    model: Annotated[str, typer.Option(help="Folder, .gguf file or hub id; the default model if left out.")] = "",
    texts: Annotated[int, typer.Option(min=1, help="How many texts.")] = 250,
    longest: Annotated[int, typer.Option(min=SHORTEST, help="Tokens of the longest text.")] = 2048,
    chunk: Annotated[list[int] | None, typer.Option(min=2, help="Chunk size; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="bfloat16, float16, float32; may be repeated.")] = None,
) -> None:
    """Compare embeddings computed in chunks with those computed in one pass: a table, and JSON on the last line.

    Fails if a cosine is not above 0.9999, or a relative L2 error not below 1 % (1e-5 in float32).
    """
    rows: list[Row] = []
    try:
        location = model or str(ensure_default_model())
        for name in dtype or ["bfloat16", "float32"]:
            if name not in MOST_ERROR:
                raise ValueError(f"dtype {name!r} is none of {', '.join(MOST_ERROR)}")
            rows += measure(location, name, texts, longest, chunk or [256, 512, 1024])  # type: ignore[arg-type]  # typer knows the names as text
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(table(rows))
    outside = [row for row in rows if not row.holds]
    print(json.dumps({"texts": texts, "longest": longest, "holds": not outside, "rows": [asdict(r) for r in rows]}))
    if outside:
        sys.exit(f"error: {len(outside)} of {len(rows)} lines are outside the bounds:\n{table(outside)}")


def _request(ids: Sequence[int]) -> EmbedRequest:
    return EmbedRequest("", list(ids), None, 0.0, pooling=POOLINGS, normalize=False)


def _hidden(backbone: Backbone, attention: AttentionBackend, cache: KVCache, plan: Plan) -> Tensor:
    """Last hidden states [T, d] of a step."""
    batch = build_batch(plan, cache.block_size, backbone.device)
    return backbone.hidden(batch.input_ids, batch.positions, attention.begin(batch, cache))


if __name__ == "__main__":
    typer.run(main)
