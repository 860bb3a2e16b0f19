"""Convolution and pooling of volumes, adaptive pooling, instance norms: torch's numbers, and what is refused."""

import itertools

import numpy as np
import pytest

from gradmgr import errors, nn, tensor
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 4, 6, 5, 7))


@pytest.fixture
def same_as_torch():
    """Calls a function here and torch's, and compares."""
    torch = pytest.importorskip("torch", reason="its numbers are compared")

    def compare(name, *args, **options):
        found = getattr(F, name)(*args, **options)
        given = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
        expected = getattr(torch.nn.functional, name)(*given, **options)
        found, expected = (a if isinstance(a, tuple) else (a,) for a in (found, expected))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other.numpy(), atol=1e-12)

    return compare


def test_convolutions_are_torchs(same_as_torch):
    w, b = RANDOM.standard_normal((6, 2, 3, 2, 3)), RANDOM.standard_normal(6)
    for stride, padding, dilation in itertools.product((1, (2, 1, 2)), (0, (1, 2, 1), "valid"), (1, (2, 1, 2))):
        same_as_torch("conv3d", X, w, b, stride, padding, dilation, 2)
    same_as_torch("conv3d", X, w[..., :1, :], b, padding="same", groups=2)


def test_transposed_convolutions_are_torchs(same_as_torch):
    w, b = RANDOM.standard_normal((4, 3, 3, 2, 3)), RANDOM.standard_normal(6)
    for padding, more, dilation in itertools.product((0, 1), (0, (1, 0, 1)), (1, (2, 1, 2))):
        same_as_torch("conv_transpose3d", X, w, b, (2, 2, 3), padding, more, 2, dilation)


def test_pools_are_torchs(same_as_torch):
    for kernel, stride, padding, ceil in itertools.product((2, (3, 2, 3)), (None, (1, 2, 1)), (0, 1), (False, True)):
        for dilation in (1, 2):
            same_as_torch("max_pool3d", X, kernel, stride, padding, dilation, ceil, True)
        for counts, divisor in itertools.product((False, True), (None, 5)):
            same_as_torch("avg_pool3d", X, kernel, stride, padding, ceil, counts, divisor)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_adaptive_pools_are_torchs(same_as_torch, axes):
    x = X[(0,) * (3 - axes)]
    for size in (1, 2, 4, (3, 5, 2)[:axes]):
        same_as_torch(f"adaptive_avg_pool{axes}d", x, size)
        same_as_torch(f"adaptive_max_pool{axes}d", x, size, True)


def test_the_first_of_equal_numbers_is_chosen(same_as_torch):
    ties = np.repeat(np.arange(8.0).reshape(1, 1, 2, 2, 2)[..., ::-1, :], 2, -1)
    same_as_torch("max_pool3d", ties, 2, 1, 0, 1, False, True)
    same_as_torch("adaptive_max_pool3d", ties, (1, 2, 3), True)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_instance_norms_are_torchs(axes):
    torch = pytest.importorskip("torch", reason="its numbers are compared")
    x = X[(0,) * (3 - axes)].astype("f4")
    layers = [
        getattr(kind, f"InstanceNorm{axes}d")(x.shape[1], affine=True, track_running_stats=True)
        for kind in (nn, torch.nn)
    ]
    for _ in range(2):
        found, expected = layers[0](tensor(x)), layers[1](torch.tensor(x))
        np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), atol=1e-5)
    for name, value in layers[1].state_dict().items():
        np.testing.assert_allclose(layers[0].state_dict()[name].numpy(), value.numpy(), rtol=1e-5)
    found, expected = (layer.eval()(a) for layer, a in zip(layers, (x[0], torch.tensor(x[0])), strict=True))
    np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), atol=1e-5)


ONES = np.ones((1, 2, 3, 3, 3))


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: F.conv3d(ONES, np.ones((1, 1, 1, 1, 1))), errors.ShapeError, "conv3d takes an input"),
        (lambda: F.conv3d(ONES, np.ones((1, 2, 4, 1, 1))), errors.ShapeError, "depth 4 does not fit into 3"),
        (lambda: F.conv3d(ONES, np.ones((1, 2, 1, 1, 1)), stride=0), errors.ShapeError, "stride must be at least 1"),
        (lambda: F.conv3d(ONES, np.ones((1, 2, 3, 1, 1)), None, 2, "same"), ValueError, "needs stride 1"),
        (lambda: F.conv3d(ONES, np.ones((1, 2, 3, 1, 1)), stride=(1, 2)), ValueError, "an integer or 3 of them"),
        (
            lambda: F.conv_transpose3d(ONES, np.ones((2, 1, 1, 1, 1)), output_padding=1),
            errors.ShapeError,
            "output_padding must be less than stride",
        ),
        (lambda: F.max_pool3d(np.ones((3, 3)), 2), errors.ShapeError, "max_pool3d takes"),
        (lambda: F.max_pool3d(ONES.astype(int), 2), errors.DtypeError, "^max_pool3d takes .* found input of dtype int"),
        (lambda: F.avg_pool3d(ONES.astype(int), 2), errors.DtypeError, "^avg_pool3d takes .* found input of dtype int"),
        (lambda: F.max_pool3d(ONES, (1, 4, 1)), errors.ShapeError, r"^max_pool3d: windows of \(1, 4, 1\) do not fit"),
        (lambda: F.avg_pool3d(ONES, (4, 1, 1)), errors.ShapeError, r"^avg_pool3d: windows of \(4, 1, 1\) do not fit"),
        (lambda: F.max_pool3d(ONES, 2, (1, 1)), ValueError, "^max_pool3d: stride must be an integer or 3 of them"),
        (lambda: F.avg_pool3d(ONES, 2, divisor_override=0), ValueError, "^avg_pool3d: divisor_override must not be 0"),
        (lambda: F.adaptive_max_pool2d(np.ones((1, 2, 2)), 0), errors.ShapeError, "output_size must be at least 1"),
        (lambda: F.adaptive_max_pool2d(np.ones((1, 2, 2)), (1, 1, 1)), errors.ShapeError, "a number or 2 of them"),
        (lambda: F.adaptive_avg_pool1d(np.ones(2), 1), errors.ShapeError, "with 1 further axes"),
        (lambda: F.instance_norm(np.ones((2, 2))), errors.ShapeError, "instance_norm takes input"),
        (lambda: nn.InstanceNorm2d(3)(ONES), errors.ShapeError, "InstanceNorm2d takes .N, 3"),
    ],
)
def test_refusals(call, kind, said):
    with pytest.raises(kind, match=said):
        call()
