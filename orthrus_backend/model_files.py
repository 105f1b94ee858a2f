"""Finds one file of a model, in a local folder or on the Hugging Face hub. Knows nothing of what the files say."""

from pathlib import Path

from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError


def find_file(location: str, name: str) -> Path | None:
    """The path of a file that belongs to a model, or None where the model has no such file.

    Args:
        location: a folder, a .gguf file (which has nothing beside it) or a hub id.
        name: relative to the model, with slashes.

    Raises:
        ValueError: it cannot be known whether there is such a file, since the hub is out of reach.
    """
    if Path(location).exists():
        path = Path(location, name)
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(location, name))
    except LocalEntryNotFoundError as error:
        if try_to_load_from_cache(location, name) is _CACHED_NO_EXIST:
            return None  # the hub said so when it was last asked
        raise ValueError(f"cannot tell whether model {location!r} has {name}: the hub is out of reach") from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ValueError(f"cannot look for {name} of model {location!r}: {error}") from error
