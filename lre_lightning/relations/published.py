"""Relations by the name of those who published them, downloaded once from where their authors keep them.

| name | relations | published by | licence |
|---|---|---|---|
| ``"paper"`` | 47 | Hernandez et al. (ICLR 2024) | MIT |
| ``"christ"`` | 79 of an extended data set, 91 of arithmetic | Christ et al. (NeurIPS 2025) | MIT |
| ``"bats"`` | 40, the Bigger Analogy Test Set, without templates | Gladkova et al. (NAACL-SRW 2016) | not stated |
| ``"klar"`` | 20 in each of 17 languages | Wang et al. (ACL 2025) | not stated |

They are not part of this package, which has the names and SHA-256 checksums of their files (``paper.sha256`` and so on,
registries of pooch). The environment variable ``LRE_BATS_COPY``, and so on, names a folder that has these files, or a
mirror.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lre_lightning.errors import LREError, first_line
from lre_lightning.progress import progress
from lre_lightning.relations.json_files import parse_json
from lre_lightning.relations.relation import Relation, read_template
from lre_lightning.relations.schema import Problems, check_relation
from lre_lightning.storage.cache import cache_folder
from lre_lightning.storage.files import failures_named, make_folder, write_whole

RETRIES = 2
LARGEST_MEMBER = 2**20
"""Largest size of a file in an archive, in bytes."""


def _valid(data: Any) -> Any:
    """Leave out templates that do not have one place for the subject, as a few of those of Christ et al. and KLAR."""
    for key in ("prompt_templates", "prompt_templates_zs"):
        data[key] = [template for template in data.get(key, []) if _is_template(template)]
    return data


def _is_template(template: Any) -> bool:
    try:
        return bool(read_template(template))
    except LREError:
        return False


def _klar(path: Path) -> Any:
    """Read a relation of KLAR, with its language as its category and in its name."""
    language = path.parent.name
    data = _valid(parse_json(path))
    return data | {"name": f"{path.stem.replace('_', ' ')} ({language})", "properties": {"relation_type": language}}


def _bats(path: Path) -> Any:
    """Read a file of BATS: on each line a subject and its objects, of which the first one is taken."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    samples = [{"subject": subject, "object": objects.split("/")[0]} for subject, objects in lines]
    samples = [{key: text.replace("_", " ") for key, text in sample.items()} for sample in samples]
    name = path.stem.partition("[")[2].removesuffix("]").replace("_", " ")
    return {"name": name, "properties": {"relation_type": path.parent.name[2:].replace("_", " ")}, "samples": samples}


@dataclass(frozen=True)
class Published:
    """A set of relations that somebody has published.

    Attributes:
        name: Its name.
        address: Where its authors keep its files, or a zip archive of them.
        page: Where a person gets them.
        read: Reads one of the files: a relation in the schema of `lre_lightning.relations.schema`.
        prefix: The folder of the files in the archive.
    """

    name: str
    address: str
    page: str
    read: Callable[[Path], Any] = parse_json
    prefix: str = ""

    @property
    def variable(self) -> str:
        """The environment variable that names a copy."""
        return f"LRE_{self.name.upper()}_COPY"

    @property
    def manifest(self) -> Path:
        """The names of the files and their checksums."""
        return Path(__file__).with_name(f"{self.name}.sha256")


_RAW, _HUB = "https://raw.githubusercontent.com/", "https://huggingface.co/datasets/"
_PAPER, _CHRIST = "1b9ec3cf2b8368e42bde7e80fcef384312a6ec07", "0d2c7746965981c701c6f23e4a2e95338be2ee99"
_ALL = (
    Published("paper", f"{_RAW}evandez/relations/{_PAPER}/data/", "https://github.com/evandez/relations"),
    Published(
        "christ",
        f"{_RAW}renyi-ai/structrels/{_CHRIST}/data/",
        "https://github.com/renyi-ai/structrels",
        lambda path: _valid(parse_json(path)),
    ),
    Published(
        "bats",
        "https://vecto-data.s3-us-west-1.amazonaws.com/BATS_3.0.zip",
        "https://vecto.space/projects/BATS",
        _bats,
        "BATS_3.0/",
    ),
    Published("klar", f"{_HUB}mingyang26/KLAR-CLC/resolve/main/", f"{_HUB}mingyang26/KLAR-CLC", _klar),
)
PUBLISHED = {published.name: published for published in _ALL}


def read_published(name: str) -> list[tuple[Path, Relation]]:
    """Read all relations of a published set, each with its file; they are downloaded if need be."""
    published = PUBLISHED[name]
    folder, problems, relations = fetch_published(name), Problems(), []
    for path in sorted(folder / file for file in _files(published, folder).registry):
        data = published.read(path)
        relation = check_relation(data, str(path), problems, category=path.parent.name, templates_required=False)
        if relation:
            relations.append((path, relation))
    problems.raise_all()
    return relations


def fetch_published(name: str, timeout: float = 20.0) -> Path:
    """Download the files of a published set, unless they are in the cache or in a folder that the user names.

    They are in `cache_folder`. The files are compared with their checksums each time; if all match, no request is made
    and nothing is written. A file is written atomically, so that a download that was interrupted is resumed with the
    next file, and processes may download at the same time.

    Args:
        name: Its name.
        timeout: Seconds without data after which a request fails. A request that fails is made `RETRIES` times again.

    Returns:
        The folder of the files.

    Raises:
        LREError: They cannot be downloaded, or a file is not what was published.
    """
    published = PUBLISHED[name]
    copy = os.path.expanduser(os.environ.get(published.variable) or published.address)
    if os.path.isdir(copy):
        files = _files(published, Path(copy))
        if missing := _missing(files):
            raise LREError(
                f"the folder {copy!r} that {published.variable} names is not a copy of {name!r}: of its "
                f"{len(files.registry)} files {len(missing)} are missing or different, such as {missing[0]!r}; "
                f"get them from {published.page}"
            )
        return Path(copy)
    cache = cache_folder()
    files = _files(published, cache / "relations" / name, copy)
    if missing := _missing(files):
        with failures_named(cache):
            _fetch(published, files, missing, timeout)
    return Path(files.abspath)


def _files(published: Published, folder: Path, address: str = "") -> Any:
    import pooch  # type: ignore[import-untyped]

    files = pooch.create(folder, address.rstrip("/") + "/", retry_if_failed=RETRIES)
    files.load_registry(published.manifest)
    return files


def _missing(files: Any) -> list[str]:
    """Return the files that are not in the folder, or not as they were published."""
    import pooch

    paths = {name: Path(files.abspath, name) for name in sorted(files.registry)}
    return [n for n, path in paths.items() if not path.is_file() or pooch.file_hash(str(path)) != files.registry[n]]


def _fetch(published: Published, files: Any, names: Sequence[str], timeout: float) -> None:
    import pooch
    import requests
    from huggingface_hub import is_offline_mode

    if published.variable not in os.environ and is_offline_mode():
        raise _not_fetched(published, published.address, "HF_HUB_OFFLINE is set")
    address = files.base_url.rstrip("/")
    print(f"downloading the relations {published.name!r} from {address} to {files.abspath}", file=sys.stderr)
    pooch.get_logger().setLevel("ERROR")
    downloader = pooch.HTTPDownloader(timeout=timeout)
    try:
        if address.endswith(".zip"):
            _unpack(published, files, names, downloader)
            return
        for name in progress(names, "Downloading"):
            address = files.get_url(name)
            make_folder(Path(files.abspath, name).parent)  # pooch fails if another process makes it in between
            Path(files.fetch(name, downloader=downloader)).chmod(0o644)  # only the owner may read what pooch makes
    except requests.RequestException as error:
        raise _not_fetched(published, address, first_line(error)) from error
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise _not_fetched(published, address, "it is not what was published, by its SHA-256") from error


def _unpack(published: Published, files: Any, names: Sequence[str], downloader: Any) -> None:
    """Download an archive, and take the named files from it; one that is missing or different is an error."""
    import pooch

    address, _, archive = files.base_url.rstrip("/").rpartition("/")
    with TemporaryDirectory() as place:
        packed = pooch.create(place, f"{address}/", registry={archive: None}, retry_if_failed=RETRIES)
        with zipfile.ZipFile(packed.fetch(archive, downloader=downloader)) as members:
            for name in names:
                with members.open(published.prefix + name) as member:
                    content = member.read(LARGEST_MEMBER)
                path = Path(place, "file")
                path.write_bytes(content)
                if pooch.file_hash(str(path)) != files.registry[name]:
                    raise ValueError(name)
                write_whole(Path(files.abspath, name), content)


def _not_fetched(published: Published, address: str, reason: str) -> LREError:
    return LREError(
        f"the relations {published.name!r} cannot be downloaded from {address}: {reason}. Try again, or get them in "
        f"another way ({published.page}) and let {published.variable} name their folder, or a mirror"
    )
