"""The 47 relations of Hernandez et al. (ICLR 2024), downloaded once from their authors' public repository.

They are under the MIT licence (https://github.com/evandez/relations) and not part of this package, which has only
their names and SHA-256 checksums at one revision of the repository (``paper.sha256``, a registry of pooch).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lre_lightning.errors import LREError, first_line
from lre_lightning.progress import progress
from lre_lightning.storage.cache import cache_folder
from lre_lightning.storage.files import failures_named, make_folder

REPOSITORY = "https://github.com/evandez/relations"
REVISION = "1b9ec3cf2b8368e42bde7e80fcef384312a6ec07"
ADDRESS = f"https://raw.githubusercontent.com/evandez/relations/{REVISION}/data/"
MANIFEST = Path(__file__).with_name("paper.sha256")
RETRIES = 2


def fetch_paper_relations(timeout: float = 20.0) -> Path:
    """Download the relations of the paper, unless they are in the cache.

    They are in `cache_folder`. The files are compared with their checksums each time; if all match, no request is made
    and nothing is written. A file is written atomically, so that a download that was interrupted is resumed with the
    next file, and processes may download at the same time. ``LRE_PAPER_RELATIONS_URL`` names a mirror of the
    repository's folder ``data``.

    Args:
        timeout: Seconds without data after which a request fails. A request that fails is made `RETRIES` times again.

    Returns:
        The folder, with a subfolder per category and a JSON file per relation.
    """
    import pooch  # type: ignore[import-untyped]

    cache = cache_folder()
    address = os.environ.get("LRE_PAPER_RELATIONS_URL") or ADDRESS
    files = pooch.create(cache / REVISION, address.rstrip("/") + "/", retry_if_failed=RETRIES)
    files.load_registry(MANIFEST)
    folder = Path(files.abspath)
    there = [name for name in files.registry if (folder / name).is_file()]
    right = [name for name in there if pooch.file_hash(str(folder / name)) == files.registry[name]]
    missing = sorted(files.registry.keys() - right)
    if missing:
        with failures_named(cache):
            _fetch(files, missing, timeout)
    return folder


def _fetch(files: Any, names: Sequence[str], timeout: float) -> None:
    import pooch
    import requests
    from huggingface_hub import is_offline_mode

    if files.base_url == ADDRESS and is_offline_mode():
        raise _not_fetched(ADDRESS, "HF_HUB_OFFLINE is set")
    print(f"downloading the paper's relations from {files.base_url} to {files.abspath}", file=sys.stderr)
    pooch.get_logger().setLevel("ERROR")
    downloader = pooch.HTTPDownloader(timeout=timeout)
    for name in progress(names, "Downloading"):
        make_folder(Path(files.abspath, name).parent)  # pooch fails if another process makes it in between
        try:
            path = Path(files.fetch(name, downloader=downloader))
        except requests.RequestException as error:
            raise _not_fetched(files.get_url(name), first_line(error)) from error
        except ValueError as error:
            raise _not_fetched(files.get_url(name), "its SHA-256 is not that of the paper's relation") from error
        path.chmod(0o644)  # pooch makes files that only their owner may read


def _not_fetched(address: str, reason: str) -> LREError:
    return LREError(
        f"the paper's relations cannot be downloaded from {address}: {reason}. Try again, or set "
        "LRE_PAPER_RELATIONS_URL to a mirror, or get the folder `data` of the repository in another way (git clone "
        f"{REPOSITORY}) and give it as source or by LRE_RELATIONS_DIR"
    )
