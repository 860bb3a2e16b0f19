"""`nn`, `optim`, checkpoints, NCCL and the examples on CuPy itself, compared with NumPy; skipped without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ROOT, cupy_on_a_gpu
from mpi import cupy_with_nccl
from samples import flat
from samples.training import CASES, CLIPS, EXAMPLES, LAYERS, parameters, seeded, values, write_mnist

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, distributed, errors, nn, no_grad, optim, tensor
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere

cupy = cupy_on_a_gpu()

pytestmark = pytest.mark.gpu

TOLERANCE = {"e": 2e-2, "f": 5e-4, "d": 1e-10, "F": 5e-4}


def moved(value: Any) -> Any:
    """Arrays and Tensors of the host on the GPU, in whatever holds them."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(moved, value))
    if isinstance(value, Tensor):
        return tensor(value, device="cuda")
    return cupy.asarray(value) if isinstance(value, np.ndarray) else value


def assert_close(found: Any, expected: Any) -> None:
    found, expected = flat(found), flat(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if b is None:
            assert a is None
            continue
        a, b = (t._array if isinstance(t, Tensor) else t for t in (a, b))
        assert isinstance(a, cupy.ndarray)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        tolerance = TOLERANCE.get(b.dtype.char, 0)
        np.testing.assert_allclose(a.get(), b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name: str) -> None:
    make, given = LAYERS[name]
    found = []
    for device in ("cpu", "cuda"):
        layer = make({"device": device})
        args = moved(given) if device == "cuda" else given
        inputs = [tensor(a) if a.dtype.kind == "f" else a for a in args]
        attached = [*layer.parameters(), *[a for a in inputs if isinstance(a, Tensor)]]
        gm = GradManager().attach(attached)
        with gm:
            trained = flat(layer(*inputs))
            gm.backward(sum([(y * y).sum() for y in trained]))
        with no_grad():
            found.append([*trained, *flat(layer.eval()(*args)), *[t.grad for t in attached]])
        values_now = [t.numpy() for t in layer.state_dict().values()]
        layer.to("cpu").to("cuda")
        assert all(np.array_equal(t.numpy(), a) for t, a in zip(layer.state_dict().values(), values_now, strict=True))
    assert_close(found[1], found[0])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else ",".join(v))
def test_steps(name: str, options: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim._chunks, "_GPU_SMALL", 1000)
    monkeypatch.setattr(optim._chunks, "_GPU_BLOCK", 512)
    twins = [parameters(dtype), moved(parameters(dtype))]
    both = [getattr(optim, name)(params, lr=0.1, **options) for params in twins]
    for step in range(3):
        grads = parameters(dtype, seed=step + 1)
        for params, optimizer, given in zip(twins, both, (grads, moved(grads)), strict=True):
            for p, g in zip(params, given, strict=True):
                p.grad = g
            optimizer.step()
        assert_close(twins[1], twins[0])
    both[1].load_state_dict(both[0].state_dict())
    both[0].load_state_dict(both[1].state_dict())


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else ",".join(v))
def test_what_is_not_finite_stays_so_in_a_step(name: str, options: dict[str, Any]) -> None:
    numbers, grads = [1.0, np.inf, np.nan, 1.0, 1.0, -np.inf], [1.0, 1.0, 1.0, np.nan, np.inf, np.nan]
    twins = [tensor(numbers), tensor(numbers, device="cuda")]
    for p in twins:
        optimizer = getattr(optim, name)([p], lr=0.1, **options)
        for _ in range(2):
            p.grad = tensor(grads, device=p.device)
            optimizer.step()
    assert_close(twins[1], twins[0])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
@pytest.mark.parametrize("name", CLIPS)
def test_clipping(name: str, dtype: str) -> None:
    results = []
    for place in (lambda value: value, moved):
        params = place(parameters(dtype))
        for p, g in zip(params, place(parameters(dtype, seed=1)), strict=True):
            p.grad = g
        results.append([CLIPS[name](params), *[p.grad for p in params]])
    assert_close(results[1], results[0])


@pytest.mark.parametrize("overflow", [False, True])
def test_a_scaler(overflow: bool) -> None:
    w = tensor(np.ones(3, "f2"), device="cuda")
    optimizer, scaler, gm = optim.SGD([w], lr=0.5), optim.GradScaler(init_scale=1024.0), GradManager().attach(w)
    with gm:
        gm.backward(scaler.scale(gnp.sum(w * (float("inf") if overflow else 1.0))))
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [1.0 if overflow else 0.5] * 3
    assert scaler.get_scale() == (512 if overflow else 1024)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: F.cross_entropy(x, y, ignore_index=1, label_smoothing=0.1),
        lambda x, y: F.embedding(y, x, 1, scale_grad_by_freq=True),
    ],
)
def test_labels_and_indices_of_the_host_are_moved(call: Any) -> None:
    y = np.array([1, 0, 1])
    found = []
    for x in (tensor(np.eye(3)), tensor(np.eye(3), device="cuda")):
        gm = GradManager().attach(x)
        with gm:
            out = call(x, y)
            gm.backward(out.sum())
        found.append([out, x.grad])
    assert_close(found[1], found[0])


def test_an_exact_resume(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(3, 4, device="cuda", rng=seeded()), nn.BatchNorm(4, device="cuda"))
        return {"model": model, "optimizer": optim.AdamW(model.parameters())}

    def step(run: dict[str, Any]) -> None:
        gm = GradManager().attach(run["model"].parameters())
        with gm:
            gm.backward((run["model"](moved(values(5, 3))) ** 3).sum())
        run["optimizer"].step()

    one, other = made(), made()
    step(one)
    gradmgr.save(one, tmp_path / "run")
    gradmgr.load(tmp_path / "run", into=other, device="cuda")
    for run in (one, other):
        run["model"].zero_grad()
        step(run)
    for a, b in zip(one["model"].parameters(), other["model"].parameters(), strict=True):
        assert a.tolist() == b.tolist()


@pytest.fixture
def nccl() -> Iterator[None]:
    cupy_with_nccl()
    distributed.init("nccl")
    yield
    distributed.finalize()


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
@pytest.mark.parametrize("method", ["mean", "sum"])
def test_the_all_reduce_of_gradients_over_nccl(method: str, bucket_bytes: int) -> None:
    ws = [t for dtype in ("f4", "f8", "f2", "c8") for t in moved(parameters(dtype)[:3])]
    unused = tensor([1.0], device="cuda")
    reduce = distributed.make_allreduce_cb(method, bucket_bytes=bucket_bytes)
    reduce._even_alone = True
    gm = GradManager().attach([*ws, unused], callbacks=reduce)
    distributed.bcast_parameters(ws)
    for _ in range(2):
        for w in ws:
            w.grad = None
        with gm:
            gm.backward(sum([(w * w).real.sum() for w in ws]))
        assert_close([w.grad for w in ws], [(2 * w.numpy().conj()).astype(w.dtype) for w in ws])
        assert unused.grad is None


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name: str, tmp_path: Path) -> None:
    for package in ("sklearn", "matplotlib", "tqdm", "mlxtend", "scipy"):
        pytest.importorskip(package, reason=f"what the examples need; {errors.how_to_install('examples')}")
    if name in ("data_parallel", "elastic"):
        cupy_with_nccl()
    write_mnist(tmp_path)
    done = subprocess.run(  # noqa: S603  # our own file, with the running interpreter
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *EXAMPLES[name].split(), "--device", "cuda"],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
