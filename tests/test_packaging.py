"""The wheel's files and metadata, the mapped packages, and the pinned versions."""

import email
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "lre_lightning": "lre_lightning",
    "datamodules": "lre_lightning/datamodules",
    "callbacks": "lre_lightning/callbacks",
}
MAX_DEMO_BYTES = 10_000_000
MAX_SMOLLM2_BYTES = 14_000_000


def run(*command, cwd):
    result = subprocess.run([sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def copy_of_the_tree(target):
    """Copy the files that a build reads or must leave out; a build in the repository would leave its `build/` there."""
    for entry in ("pyproject.toml", "README.md", "LICENSE", "cli.py"):
        if (ROOT / entry).exists():
            shutil.copy(ROOT / entry, target)
    for entry in (*FOLDERS, "tests", "scripts"):
        shutil.copytree(ROOT / entry, target / entry, ignore=shutil.ignore_patterns("__pycache__"))


def built_wheel(tmp_path_factory):
    """Build the source distribution, and the wheel from it, once for all processes that run tests."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    out = shared / "dist"
    with FileLock(shared / "dist.lock"):
        if not out.is_dir():
            tree, part = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("part")
            copy_of_the_tree(tree)
            run("-m", "build", "--no-isolation", "--outdir", part, tree, cwd=part)
            part.rename(out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built_wheel(tmp_path_factory)


@pytest.fixture
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def requirements(metadata):
    return [Requirement(line) for line in metadata.get_all("Requires-Dist")]


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_library_and_no_other(wheel):
    expected = {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected
    assert {"lre_lightning/py.typed", "lre_lightning/datamodules/__init__.py"} <= held


@pytest.mark.slow
def test_the_bundled_model_stays_small_and_the_wheel_offers_the_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist() if info.filename.endswith(".safetensors")}
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert archive.read(name).decode().split() == ["[console_scripts]", "lre", "=", "lre_lightning.cli:main"]
    real = {name: size for name, size in sizes.items() if name.startswith("lre_lightning/demo/smollm2/")}
    demo = {name: size for name, size in sizes.items() if name not in real}
    others = {name for name in demo if not name.startswith("lre_lightning/demo/lres/")}
    assert others == {"lre_lightning/demo/model/model.safetensors"}
    assert sum(demo.values()) <= MAX_DEMO_BYTES
    assert 0 < sum(real.values()) <= MAX_SMOLLM2_BYTES


@pytest.mark.slow
def test_the_metadata_refuse_the_malicious_lightning_releases_and_ask_for_what_its_command_line_needs(metadata):
    asked = {requirement.name: requirement for requirement in requirements(metadata)}
    found = asked["lightning"].specifier.filter(["2.6.1", "2.6.2", "2.6.3", "2.6.6"])
    assert list(found) == ["2.6.6"]
    assert asked["jsonargparse"].extras == {"signatures"}


@pytest.mark.slow
def test_every_dependency_is_pinned_within_its_range(metadata):
    pins = constraints()
    asked = requirements(metadata)
    assert {"torch", "lightning", "transformers", "pytest", "mypy", "ruff"} <= {r.name for r in asked}
    assert str(pins["torch"].specifier) == "==2.13.0"  # the tested version
    for requirement in asked:
        (pin,) = pins[canonicalize_name(requirement.name)].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), f"{requirement} does not admit the tested {pin.version}"


def test_the_editable_install_maps_the_folders(tmp_path):
    code = (
        "from importlib.util import find_spec\n"
        "for name in ('', '.datamodules', '.callbacks'): print(find_spec('lre_lightning' + name).origin)\n"
        "print(find_spec('datamodules'), find_spec('callbacks'))\n"
    )
    expected = [ROOT / folder / "__init__.py" for folder in ("lre_lightning", "datamodules", "callbacks")]
    assert run("-c", code, cwd=tmp_path).splitlines() == [*map(str, expected), "None None"]
