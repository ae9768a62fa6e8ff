"""From a gradient in latent coordinates to one per natural unit."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from llm_elicit.density.empirical import Empirical
from llm_elicit.density.latent import Latent
from llm_elicit.density.mixture import GaussianMixture
from llm_elicit.density.sampling import Uniform

Array = npt.NDArray[np.float64]


def natural_slope(latent: Latent, g: Array, v: Array) -> Array:
    """Gradient (n, d) per natural unit of f + log|dz/dx|; f has the gradient v (n, d) in g (n, d).

    The second term makes a log density per unit of the scales z one per natural unit; it varies
    where a scale is logarithmic.

    Examples
    --------
    >>> import numpy as np
    >>> from llm_elicit.density.latent import make_latent
    >>> latent = make_latent(GaussianMixture([1.0], [[0.0]], [[[4.0]]]))   # g = x / 2
    >>> natural_slope(latent, np.array([[0.3]]), np.array([[1.0]])).tolist()
    [[0.5]]
    """
    sampling = latent.sampling
    if isinstance(sampling, Uniform):
        widths = sampling.scale_high - sampling.scale_low
        per_scale = v * math.sqrt(2.0 * math.pi) * np.exp(0.5 * g * g) / widths
        # On a logarithmic scale z = log x and log|dz/dx| = −log x.
        x = np.where(sampling.log, latent.from_latent(g), 1.0)
        return (per_scale - sampling.log) / x
    if isinstance(sampling, GaussianMixture):
        return np.asarray(np.linalg.solve(np.linalg.cholesky(sampling.covariance).T, v.T).T)
    assert isinstance(sampling, Empirical)  # the last of those with latent coordinates
    h = torch.from_numpy(g @ sampling.cholesky.T)
    of_scores = np.linalg.solve(sampling.cholesky.T, v.T).T
    return np.asarray(of_scores * np.exp(-sampling.marginals.log_slope(h).numpy()))
