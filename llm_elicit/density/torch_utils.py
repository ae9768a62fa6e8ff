"""PyTorch's device, random numbers and number of threads, and optimizers of its functions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TypeVar

import numpy as np
import torch
from scipy import optimize
from torch import Tensor
from torch.optim.adam import adam

from llm_elicit.density.errors import Array, DensityError, check_seed

_KINDS = ("cpu", "cuda")
_DAMPINGS = (1e-6, 1e6)
_Point = TypeVar("_Point")


def check_device(name: str) -> torch.device:
    """Return the device called "cpu", "cuda" or "cuda:0", if this machine has it."""
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
            f"FitSettings: device {name!r} is not available; PyTorch finds "
            f"{torch.cuda.device_count()} CUDA devices on this machine; leave device out for "
            "cpu, or install a driver and a PyTorch built for it."
        )
    return device


def make_generator(seed: int) -> torch.Generator:
    """Return the generator of a seed."""
    return torch.Generator().manual_seed(check_seed("seed", seed))


def prefix_tensors(name: str, value: object) -> dict[str, Tensor]:
    """Return the tensors of a network, or of a dataclass, by names that begin with ``name``."""
    parts = value.state_dict() if isinstance(value, torch.nn.Module) else vars(value)
    return {f"{name}.{key}": tensor.cpu() for key, tensor in parts.items()}


def select_tensors(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``name``, without that prefix."""
    start = f"{name}."
    return {key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)}


def sum_last(x: Tensor) -> Tensor:
    """Return the sum over the last axis; of up to three, `Tensor.sum` takes ten times as long."""
    return reduce(torch.add, x.unbind(-1)) if 0 < x.shape[-1] < 4 else x.sum(-1)


class _ThreadState(threading.local):
    """Whether this thread is inside `one_thread`; with the threads inside, and PyTorch's number."""

    lock = threading.Lock()
    threads = 0
    outside = 1

    inside = False


_one_thread = _ThreadState()


def _after_fork() -> None:
    """Let PyTorch use one thread in a forked process, which has none of OpenMP's threads.

    An operation that waits for them never returns, and a fit at the time of the fork would hold
    the lock for ever.
    """
    _ThreadState.lock = threading.Lock()
    _ThreadState.threads, _ThreadState.outside, _one_thread.inside = 0, 1, False
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread inside, and the caller's number again afterwards.

    The networks and forms fitted here are so small that handing an operation to a second
    thread costs more than the operation: the housing fit took 50 s with two threads and 7 s
    with one. Fits may overlap in several threads of one process, but run faster in several
    processes.
    """
    if _one_thread.inside:
        yield
        return
    # PyTorch's number is the calling thread's own, and the default of threads started later. So
    # the number to restore is that before the first of several overlapping fits.
    with _ThreadState.lock:
        thread_count = torch.get_num_threads()  # a new thread takes the default at its first call
        if not _ThreadState.threads:
            _ThreadState.outside = thread_count
        _ThreadState.threads += 1
        torch.set_num_threads(1)
    _one_thread.inside = True
    try:
        yield
    finally:
        _one_thread.inside = False
        with _ThreadState.lock:
            _ThreadState.threads -= 1
            torch.set_num_threads(_ThreadState.outside)


def minimize(
    loss: Callable[[Tensor], Tensor], start: Array, bounds: Sequence[tuple[float, float | None]]
) -> Array:
    """Return the point (P,) within bounds where a differentiable loss is least, by L-BFGS-B.

    Examples:
        >>> minimize(lambda x: (x - 3).square().sum(), np.zeros(2),
        ...          [(0, 9), (0, 1)]).round().tolist()
        [3.0, 1.0]
    """

    def value_and_gradient(point: Array) -> tuple[float, Array]:
        tensor = torch.from_numpy(point).requires_grad_()
        value = loss(tensor)
        (gradient,) = torch.autograd.grad(value, [tensor])
        return float(value.detach()), gradient.numpy()

    optimum = optimize.minimize(
        value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds
    )
    return np.asarray(optimum.x)


def ascend(
    start: _Point,
    value: Callable[[_Point], float],
    derivatives: Callable[[_Point], tuple[Tensor, Tensor]],
    take_step: Callable[[_Point, Tensor], _Point],
    max_steps: int,
    tolerance: float,
) -> tuple[_Point, float]:
    """Return the point after at most ``max_steps`` Newton steps uphill, and its value.

    Steps are damped as by Marquardt (1963) until the value rises.

    Args:
        start: where to begin.
        value: the function to maximize.
        derivatives: the gradient (P,), and the curvature (P, P), positive where the value is
            concave.
        take_step: the point after a step (P,).
        max_steps: the largest number of steps.
        tolerance: the last step is the first that gains less.

    Examples:
        >>> import torch
        >>> def derivatives(x): return -4.0 * (x - 3.0) ** 3, torch.diag(12.0 * (x - 3.0) ** 2)
        >>> at, top = ascend(torch.zeros(1), lambda x: -float((x - 3.0) ** 4), derivatives,
        ...                  torch.add, 60, 1e-9)
        >>> bool(abs(at - 3.0) < 0.01)
        True
    """
    point, best_value, damping, improved = start, value(start), 0.1, True
    for _ in range(max_steps):
        if improved:
            gradient, curvature = (part.double() for part in derivatives(point))
        scale = curvature.diagonal() + 1e-6 * curvature.diagonal().mean()
        step = torch.linalg.solve(curvature + damping * torch.diag(scale), gradient)
        proposal = take_step(point, step)
        proposal_value = value(proposal)
        improved = proposal_value > best_value
        if improved:
            gain, point, best_value = proposal_value - best_value, proposal, proposal_value
            damping = max(damping / 4.0, _DAMPINGS[0])
            if gain < tolerance:
                break
        else:
            damping *= 6.0
            if damping > _DAMPINGS[1]:
                break
    return point, best_value


class Adam:
    """PyTorch's Adam (Kingma and Ba, 2015), which changes ``parameters`` in place.

    It calls the function behind `torch.optim.Adam`, because building that class imports PyTorch's
    compiler, which takes seconds.

    Examples:
        >>> import torch
        >>> at = torch.tensor([3.0])
        >>> adam = Adam([at])
        >>> for _ in range(100):
        ...     adam.step([2.0 * at], rate=0.1)               # the gradient of at²
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
        """Change the parameters once, against their ``gradients``."""
        adam(
            self.parameters, list(gradients), self.means, self.squares, [], self.counts,
            amsgrad=False, maximize=False, lr=rate, beta1=0.9, beta2=0.99, eps=1e-8,
            weight_decay=0.0,
        )  # fmt: skip
