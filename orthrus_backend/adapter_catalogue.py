"""Which adapters requests may name: those given at start, and those of a list file, which may change while serving.

Only the operator decides: nothing that a caller sends adds a name or a path. A request holds the version that it was
accepted with, so an adapter that is replaced or removed goes when the last request with it has ended.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from orthrus_backend.adapters import Adapter
from orthrus_backend.config import named_paths

_POLL_SECONDS = 1.0
_log = logging.getLogger(__name__)


class AdapterCatalogue(Mapping[str, Adapter]):
    """Loaded adapters by name. May be read from any thread."""

    def __init__(
        self, load: Callable[[str, Path], Adapter], fixed: Mapping[str, str], list_file: Path | None = None
    ) -> None:
        """`fixed`: paths by name. `list_file`: a text file with a line `name=path` for each further adapter.

        Raises:
            ValueError: the list cannot be read, a name is given twice, or an adapter cannot be served.
        """
        self._load = load
        self._fixed = {name: Path(path) for name, path in fixed.items()}
        self._list_file = list_file
        self._paths: Mapping[str, Path] = {}  # where each loaded adapter came from
        self._loaded: Mapping[str, Adapter] = {}  # replaced as a whole, never changed
        self._on_change: Callable[[Collection[str]], None] = lambda names: None
        self._closed = threading.Event()
        self._stamp = self._stat()
        for error in self._update(self._listed()):
            raise error

    def __getitem__(self, name: str) -> Adapter:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def watch(self, on_change: Callable[[Collection[str]], None]) -> None:
        """Tell the names that there are, now and after each change.

        Looks at the list file every second, from a thread; a fault in it is logged and what was served stays.
        """
        self._on_change = on_change
        on_change(self._loaded.keys())
        if self._list_file is not None:
            threading.Thread(target=self._watch, name="orthrus-adapters", daemon=True).start()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()

    def refresh(self) -> None:
        """Take over the list file if it has changed: load what is new or moved, forget what is gone."""
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            paths = self._listed()
        except ValueError as error:
            _log.error("the adapters stay as they are: %s", error)
            return
        for fault in self._update(paths):
            _log.error("%s", fault)

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            self.refresh()

    def _stat(self) -> tuple[int, ...]:
        """Changes whenever the list file does."""
        try:
            stat = self._list_file.stat() if self._list_file else None
        except OSError:
            stat = None
        return (stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else ()

    def _listed(self) -> dict[str, Path]:
        """Paths by name: the fixed ones, and what the list file says now."""
        if self._list_file is None:
            return self._fixed
        try:
            lines = self._list_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read adapters_file: {error}") from error
        try:
            pairs = named_paths(line for line in lines if not line.lstrip().startswith("#"))
        except ValueError as error:
            raise ValueError(f"{self._list_file}: {error}") from error
        if twice := sorted(pairs.keys() & self._fixed.keys()):
            raise ValueError(f"{self._list_file}: adapter {twice[0]!r} is given by the parameter adapters already")
        return self._fixed | {name: self._list_file.parent / path for name, path in pairs.items()}

    def _update(self, paths: Mapping[str, Path]) -> list[ValueError]:
        """Serve what `paths` names; what cannot be loaded is returned as an error, and keeps its version so far."""
        loaded = {name: adapter for name, adapter in self._loaded.items() if name in paths}
        origins = {name: path for name, path in self._paths.items() if name in paths}
        errors = []
        for name, path in paths.items():
            if origins.get(name) == path:
                continue
            try:
                loaded[name], origins[name] = self._load(name, path), path
            except ValueError as error:
                errors.append(error)
            else:
                _log.info("adapter %r is loaded from %s", name, path)
        for name in self._loaded.keys() - paths.keys():
            _log.info("adapter %r is no longer served", name)
        self._loaded, self._paths = loaded, origins
        self._on_change(loaded.keys())
        return errors
