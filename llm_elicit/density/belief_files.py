"""The files of a saved belief: ``belief.safetensors`` and ``belief.json``."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_elicit.density.empirical import Empirical
from llm_elicit.density.errors import DensityError
from llm_elicit.density.feature_names import FeatureNames
from llm_elicit.density.gaussian_mixture import GaussianMixture
from llm_elicit.density.latent import Latent
from llm_elicit.density.methods import DensityModel, external_method
from llm_elicit.density.sampling import SamplingDensity
from llm_elicit.density.score.density import ScoreDensity
from llm_elicit.density.transforms import make_latent
from llm_elicit.density.uniform import Uniform
from llm_elicit.density.utility_density import UtilityDensity
from llm_elicit.density.utility_function import UtilityDraws

_FORMAT = 2
_RESTORE: dict[str, Callable[[Latent, dict[str, Tensor], dict[str, Any]], DensityModel]] = {
    "utility": UtilityDensity.restore,
    "score": ScoreDensity.restore,
    "score-constant": ScoreDensity.restore,
}


@dataclass(frozen=True)
class BeliefParts:
    """All that a belief consists of.

    Args:
        latent, model: the coordinates, and the density in them.
        reference: (m, d) latent draws kept with the fit.
        diagnostics: the JSON-able report of the fit.
        draws: draws of the posterior over utilities; None if the belief was fitted without.
        features: names of the features; None if they have none.
    """

    latent: Latent
    model: DensityModel
    reference: Tensor
    diagnostics: dict[str, Any]
    draws: UtilityDraws | None = None
    features: FeatureNames | None = None


def write_belief(parts: BeliefParts, folder: object) -> None:
    """Write both files into ``folder``, which is made if it is missing."""
    target = _folder("save", folder)
    target.mkdir(parents=True, exist_ok=True)
    tensors = {**parts.model.tensors(), "reference": parts.reference}
    if parts.draws is not None:
        tensors |= parts.draws.tensors()
    # Draws and utility may share a tensor, which safetensors refuses.
    own = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(own, target / "belief.safetensors")
    radius = parts.latent.radius
    text = {
        "format": _FORMAT,
        "model": parts.model.name,
        "config": parts.model.config(),
        "sampling": parts.latent.sampling.to_dict(),
        "radius": radius if math.isfinite(radius) else None,
        "diagnostics": parts.diagnostics,
    }
    if parts.features is not None:
        text["features"] = parts.features.to_dict()
    text["digest"] = _digest(text, target / "belief.safetensors")
    (target / "belief.json").write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")


def read_belief(folder: object) -> BeliefParts:
    """Return what `write_belief` wrote, in this format alone."""
    source = _folder("load", folder)
    try:
        text = json.loads((source / "belief.json").read_text(encoding="utf-8"))
        tensors = load_file(source / "belief.safetensors")
        # Of memory that is aligned as at the fit, so that sums round alike.
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise DensityError(
            f"load: {source} holds no readable belief ({error}); a belief is the two files "
            "belief.json and belief.safetensors; give the folder that save wrote."
        ) from error
    if text.get("format") != _FORMAT:
        raise DensityError(
            f"load: {source} is of format {text.get('format')!r}; this version reads format "
            f"{_FORMAT}; fit again, or read it with the version that wrote it."
        )
    if text.pop("digest", None) != _digest(text, source / "belief.safetensors"):
        raise DensityError(
            f"load: {source} was changed since save wrote it (its digest differs); restore it or "
            "fit again."
        )
    latent = make_latent(sampling_from_dict(text["sampling"]))
    latent.radius = math.inf if text["radius"] is None else text["radius"]
    reference = tensors.pop("reference")
    name, config = text["model"], text["config"]
    restore = _RESTORE[name] if name in _RESTORE else external_method(name).restore
    model = restore(latent, tensors, config)
    draws = UtilityDraws.from_tensors(tensors) if "draws.linear" in tensors else None
    features = FeatureNames.from_dict(text["features"]) if "features" in text else None
    return BeliefParts(latent, model, reference, text["diagnostics"], draws, features)


def sampling_from_dict(text: dict[str, Any]) -> SamplingDensity:
    """Return the sampling density that its ``to_dict`` described."""
    fields = {k: v for k, v in text.items() if k not in ("kind", "names")}
    kinds: dict[str, Callable[..., SamplingDensity]] = {
        "uniform": Uniform,
        "gaussian_mixture": GaussianMixture,
        "empirical": Empirical.from_tables,
    }
    density = kinds[text["kind"]](**fields)
    density.names = tuple(text["names"]) if "names" in text else None
    return density


def _folder(label: str, folder: object) -> Path:
    if not isinstance(folder, str | Path):
        raise DensityError(f"{label}: folder = {folder!r}; it must be a path.")
    return Path(folder)


def _digest(text: dict[str, Any], tensors: Path) -> str:
    """Return SHA-256 of the contents of both files."""
    digest = hashlib.sha256(tensors.read_bytes())
    as_read = json.loads(json.dumps(text))  # JSON turns keys into texts
    digest.update(json.dumps(as_read, sort_keys=True).encode())
    return digest.hexdigest()
