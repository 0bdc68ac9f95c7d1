"""The folders from which a server loads adapters: those that were named at its start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from genenv.backends.settings import ADAPTERS_PREFIX
from genenv.errors import UsageError


class Folders:
    """Says whether an adapter may be loaded from a folder."""

    def __init__(self, named: Sequence[Path] = ()) -> None:
        """Folders.

        Args:
            named: adapters are loaded from these and all below. None: from the temporary folders that runs of
                this user on this machine make for their adapters.
        """
        self._named = [folder.expanduser().resolve() for folder in named]

    def checked(self, path: str) -> Path:
        """The folder of an adapter, without symbolic links.

        Raises:
            UsageError: it is not below the folders, or not there.
        """
        try:
            folder = Path(path).resolve(strict=True)
            roots = self._named or self._temporary(folder)
            within = any(folder.is_relative_to(root) for root in roots) and all(
                any(one.resolve().is_relative_to(root) for root in roots) for one in folder.rglob("*")
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"{path} is no folder of an adapter that this server can read") from error
        if not within:
            shown = ", ".join(map(str, self._named)) or f"{tempfile.gettempdir()}/{ADAPTERS_PREFIX}*"
            raise UsageError(
                f"{path} is in no folder that this server loads adapters from ({shown}); start it with "
                "--adapters FOLDER, where FOLDER is the run's policy.vllm.folder"
            )
        return folder

    @staticmethod
    def _temporary(folder: Path) -> list[Path]:
        """The folder of a run's adapters that a path is in, where it is one of this user's."""
        root = Path(tempfile.gettempdir()).resolve()
        if not folder.is_relative_to(root) or folder == root:
            return []
        own = root / folder.relative_to(root).parts[0]
        mine = own.name.startswith(ADAPTERS_PREFIX) and own.stat().st_uid == os.getuid()
        return [own] if mine else []
