"""Where utilities are evaluated: names, errors, and the same belief on both kinds of device."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_elicit.density import BeliefDensity, DensityError, FitSettings, Uniform, fit_belief
from llm_elicit.density.torch_utils import one_thread
from llm_elicit.density.utility_function import Utility
from tests.density.conftest import QUICK
from tests.density.targets import Array, ask, onemoon, random_process, wasserstein

BOX = Uniform([-3.0, -3.0], [3.0, 3.0])


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "meta", "", "cpu cuda"])
def test_an_unknown_device_is_named_in_one_line(name: str) -> None:
    with pytest.raises(DensityError, match=r"device .* is unknown; the devices are cpu") as caught:
        FitSettings(device=name)
    assert "\n" not in str(caught.value)


def test_a_device_that_is_not_there_is_named_in_one_line() -> None:
    absent = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(DensityError, match=f"device '{absent}' is not available") as caught:
        FitSettings(device=absent)
    assert "\n" not in str(caught.value)


def _utility(generator: torch.Generator) -> Utility:
    return Utility(torch.ones(3), torch.eye(3), fourier=random_process(2, 3, generator))


def test_values_come_back_in_the_precision_of_the_features() -> None:
    generator = torch.Generator().manual_seed(0)
    utility = _utility(generator)
    t = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    exact = utility.to(t)(t)
    assert utility(t).dtype == torch.float64
    assert utility(t.float()).dtype == torch.float32
    assert utility(t).numpy() == pytest.approx(exact.numpy(), rel=1e-5, abs=1e-5)
    assert utility(t).numpy() != pytest.approx(exact.numpy(), rel=1e-12)


@pytest.fixture(scope="module")
def judge() -> tuple[Array, Array]:
    return ask(onemoon, BOX, 600, seed=11)


def _fit(judge: tuple[Array, Array], method: str, device: str) -> BeliefDensity:
    settings = replace(QUICK, device=device)
    return fit_belief(*judge, sampling=BOX, method=method, seed=1, settings=settings)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("method", ["utility", "score"])
def test_cpu_and_cuda_give_the_same_belief(
    judge: tuple[Array, Array], method: str, tmp_path: Path
) -> None:
    """Within sampling error, and the file written from the one is read on the other."""
    on_cpu, on_gpu = (_fit(judge, method, device) for device in ("cpu", "cuda"))
    assert on_gpu.diagnostics["device"] == "cuda"
    x, y = (belief.sample(3000, seed=1) for belief in (on_cpu, on_gpu))
    floor = wasserstein(x, on_cpu.sample(3000, seed=2))
    assert wasserstein(x, y) < 1.5 * floor
    error = sum(b.diagnostics["log_prob_error"]["total"] for b in (on_cpu, on_gpu))
    gap = on_cpu.log_prob(x) - on_gpu.log_prob(x)
    assert np.sqrt(np.mean(gap**2)) < 4 * error + 0.05
    on_gpu.save(tmp_path)
    again = BeliefDensity.load(tmp_path)
    assert again.log_prob(x) == pytest.approx(on_gpu.log_prob(x), abs=1e-3)


def test_overlapping_fits_leave_the_number_of_threads_as_it_was() -> None:
    """PyTorch's number is each thread's own, and the default of threads started later."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    entered, leave = threading.Event(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        with one_thread():
            entered.set()
            leave.wait()
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    try:
        with one_thread():
            thread.start()
            entered.wait()
            with one_thread():
                pass
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        leave.set()
        thread.join()
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert seen == [1, 3, 3]
    finally:
        torch.set_num_threads(before)
