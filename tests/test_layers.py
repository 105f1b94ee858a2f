"""Imports run one way, from the engine's outside to its core, and the core never loads torch."""

import ast
import subprocess
import sys
from pathlib import Path

import orthrus_backend

ROOT = Path(orthrus_backend.__file__).parent
# Lowest first; a module may import from its own layer and from lower ones.
LAYERS = (
    ("validation", "config", "params", "model_files", "drain_file", "turns"),
    ("sentence_transformers_files", "native"),
    ("embedding_recipe",),
    ("request",),
    ("plan", "outputs", "blocks", "metrics"),
    ("prefix_cache",),
    ("scheduling",),
    ("batch", "padding"),
    ("kv_cache",),
    ("attention",),
    ("model",),
    (
        "adapter_config",
        "adapters",
        "pooling",
        "embedding_head",
        "draws",
        "logit_edits",
        "sampling",
        "detokenize",
        "tokenization",
    ),
    ("fused",),
    ("runner", "acceleration", "self_check", "prompt_checks", "adapter_catalogue"),
    ("split_runner",),
    ("generate_intake", "embed_intake"),
    ("intake",),
    ("accounting", "admission", "delivery", "engine"),
    ("default_model",),
    ("observability",),
    ("assembly",),
    ("triton", "serve"),
    ("cli",),
)
TORCH_FREE = (
    "config",
    "params",
    "request",
    "plan",
    "outputs",
    "blocks",
    "prefix_cache",
    "metrics",
    "scheduling.scheduler",
    "admission",
    "engine",
    "embedding_recipe",
    "observability.journal",
    "observability.request_log",
    "observability.spans",
)


def imports_of(path: Path) -> set[str]:
    """Top-level names inside the package that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("orthrus_backend."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("orthrus_backend.")}
    return names


def test_every_module_has_a_layer_and_imports_downwards() -> None:
    level = {name: height for height, names in enumerate(LAYERS) for name in names}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).with_suffix("").parts[0]
        if name == "__init__":
            continue
        assert name in level, f"{name} has no layer"
        above = {other for other in imports_of(path) if level[other] > level[name]}
        assert not above, f"{path.name} imports {above}, which lie above it"


def test_no_import_cycle_inside_a_layer() -> None:
    graph: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).with_suffix("").parts[0]
        graph.setdefault(name, set()).update(imports_of(path) - {name})
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import cycle: {' -> '.join((*trail, name))}"
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_core_never_loads_torch() -> None:
    modules = ", ".join(f"orthrus_backend.{name}" for name in TORCH_FREE)
    code = f"import sys; import {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
