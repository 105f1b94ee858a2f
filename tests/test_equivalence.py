"""`make equivalence` prints its table, and fails when chunks change a vector."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from orthrus_backend.plan import Slice
from orthrus_backend.pooling import PoolState, Vector, pool_slices
from tools import equivalence


def test_it_prints_a_table_and_json_on_the_last_line(small_model: Path) -> None:
    options = [f"--model={small_model}", "--texts=4", "--longest=70", "--chunk=16", "--chunk=33", "--dtype=float32"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.equivalence", *options],
        cwd=Path(equivalence.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert lines[0] == "| dtype | pooling | chunk | min cosine | mean rel. L2 | p99 rel. L2 |"
    document = json.loads(last)
    assert len(lines) - 2 == len(document["rows"]) == 3 * 2
    assert document["holds"]
    assert all(row["p99_error"] < 1e-5 for row in document["rows"])
    assert "100%" in done.stderr  # of the progress bar


def test_it_fails_where_a_chunk_is_pooled_wrongly(
    small_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def counted_twice(
        hidden: Tensor, embeds: Sequence[Slice]
    ) -> tuple[list[PoolState | Vector], list[PoolState | None]]:
        pooled, _ = pool_slices(hidden, embeds)
        for s, state in zip(embeds, pooled, strict=True):
            if isinstance(state, PoolState):
                s.request.pool = state
        return pool_slices(hidden, embeds)

    monkeypatch.setattr(equivalence, "pool_slices", counted_twice)
    with pytest.raises(SystemExit, match=r"lines are outside the bounds:\n.*\n.*\n\| float32 \| .* \| 16 \|"):
        equivalence.main(model=str(small_model), texts=3, longest=70, chunk=[16], dtype=["float32"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["holds"] is False


@pytest.mark.parametrize(
    ("options", "named"), [({"dtype": ["int8"]}, "int8"), ({"longest": 9000, "dtype": ["float32"]}, "9000.*8192")]
)
def test_what_cannot_be_measured_is_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(SystemExit, match=named):
        equivalence.main(texts=1, **options)
