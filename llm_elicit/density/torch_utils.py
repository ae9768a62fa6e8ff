"""PyTorch as the core uses it: the device, the number of threads, the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.adam import adam

from llm_elicit.density.errors import DensityError

_KINDS = ("cpu", "cuda")


def device_named(name: str) -> torch.device:
    """The device called "cpu", "cuda" or "cuda:0", if this machine has it.

    Raises
    ------
    DensityError : another name, or a CUDA device that is not there.

    Examples
    --------
    >>> device_named("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in _KINDS:
        raise DensityError(
            f"FitSettings: device {name!r} is unknown; the devices are cpu, cuda and cuda:0 (or "
            "another number); leave it out for cpu."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DensityError(
            f"FitSettings: device {name!r} is not there; PyTorch sees "
            f"{torch.cuda.device_count()} CUDA devices on this machine; leave device out for cpu, "
            "or install a driver and a PyTorch built for it."
        )
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside, the caller's number again afterwards.

    The networks and forms fitted here are so small that handing an operation to a second
    thread costs more than the operation: the housing fit took 50 s with two threads and 7 s
    with one. The number belongs to the process, so fits in several threads of one process
    share it; run them in several processes.

    Examples
    --------
    >>> import torch
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
