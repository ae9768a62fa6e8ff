"""Adam as a function of its own: building PyTorch's class imports the compiler, seconds of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam


class Adam:
    """PyTorch's Adam (Kingma and Ba, 2015) on ``parameters``, bit for bit that of its class.

    Examples
    --------
    >>> import torch
    >>> at = torch.tensor([3.0])
    >>> adam = Adam([at])
    >>> for _ in range(100):
    ...     adam.step([2.0 * at], rate=0.1)               # down the slope of at²
    >>> bool(at.abs() < 0.1)
    True
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.counts = [torch.tensor(0.0) for _ in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Move the parameters once, against their ``gradients``."""
        adam(
            self.parameters,
            list(gradients),
            self.means,
            self.squares,
            [],
            self.counts,
            amsgrad=False,
            beta1=0.9,
            beta2=0.99,
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
