"""Where the networks are evaluated: on the CPU, or on a CUDA device when asked for."""

from __future__ import annotations

import torch

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
