"""pad, interpolate, grid_sample, affine_grid: torch's numbers, values that are far outside, what is refused."""

import itertools

import numpy as np
import pytest

from gradmgr import GradManager, errors, gradcheck, gradgradcheck, tensor
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere

RANDOM = np.random.default_rng(0)
INPUTS = {shape: RANDOM.standard_normal(shape) for shape in ((2, 3, 5), (2, 3, 5, 4), (1, 2, 3, 4, 5))}
MODES = {3: ("linear",), 4: ("bilinear", "bicubic"), 5: ("trilinear",)}
SIZES = [{"size": 7}, {"size": 2}, {"size": 1}, {"scale_factor": 1.7}, {"scale_factor": 0.6}]
SIZES += [{"scale_factor": factor} for factor in (1.01, 1.15, 1.24, 2.19)]  # some lengths stay the same or double
SIZES.append({"scale_factor": 1.7, "recompute_scale_factor": True})


def is_torchs(found, expected):
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-7)


@pytest.mark.parametrize("shape", INPUTS)
def test_interpolate_is_torchs(shape):
    torch = pytest.importorskip("torch", reason="its numbers are compared")
    x = INPUTS[shape]
    modes = [(mode, None) for mode in ("nearest", "nearest-exact", "area")]
    modes += itertools.product(MODES[len(shape)], (False, True))
    for (mode, corners), options in itertools.product(modes, SIZES):
        options = {"mode": mode, "align_corners": corners, **options}
        is_torchs(F.interpolate(x, **options), torch.nn.functional.interpolate(torch.tensor(x), **options))


@pytest.mark.parametrize("shape", list(INPUTS)[1:])
def test_grids_are_torchs(shape):
    torch = pytest.importorskip("torch", reason="its numbers are compared")
    x, axes = INPUTS[shape], len(shape) - 2
    lengths = (3, 2, 6)[:axes]
    grid = RANDOM.uniform(-2.5, 2.5, (shape[0], *lengths, axes))
    modes = ("bilinear", "nearest", "bicubic")[: 5 - axes]
    for options in itertools.product(modes, ("zeros", "border", "reflection"), (False, True)):
        expected = torch.nn.functional.grid_sample(torch.tensor(x), torch.tensor(grid), *options)
        is_torchs(F.grid_sample(x, grid, *options), expected)
    theta = RANDOM.standard_normal((shape[0], axes, axes + 1))
    for corners in (False, True):
        size = (*shape[:2], *lengths)
        is_torchs(
            F.affine_grid(theta, size, corners), torch.nn.functional.affine_grid(torch.tensor(theta), size, corners)
        )


def test_the_nearest_number_has_a_derivative_of_zero_by_its_position():
    x, grid = np.arange(12.0).reshape(1, 1, 3, 4), tensor(RANDOM.uniform(-1, 1, (1, 2, 2, 2)))
    with GradManager().attach(grid) as gm:
        gm.backward(np.sum(F.grid_sample(x, grid, "nearest")))
    assert grid.grad.numpy().tolist() == np.zeros((1, 2, 2, 2)).tolist()
    assert gradcheck(lambda x, grid: F.grid_sample(x, grid, "nearest"), (tensor(x), grid), check_forward_ad=True)
    assert gradgradcheck(lambda x, grid: F.grid_sample(x, grid, "nearest"), (tensor(x), grid))


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_derivatives_of_samples_are_numeric_ones_to_second_order(mode, padding_mode):
    random = np.random.default_rng(1)
    points = tensor(random.standard_normal((1, 2, 2, 3))), tensor(random.uniform(-1.4, 1.4, (1, 1, 2, 2)))

    def function(x, grid):
        return F.grid_sample(x, grid, mode, padding_mode, False)

    assert gradcheck(function, points)
    assert gradgradcheck(function, points)


@pytest.mark.parametrize("lengths", [(2, 4), (1, 8), (4, 2, 2)])
def test_slopes_at_edges_and_just_beyond_are_torchs(lengths):
    """Lengths are powers of 2, so that positions are exactly on the edges; a number beyond is that at the edge."""
    torch = pytest.importorskip("torch", reason="its numbers are compared")
    axes, random = len(lengths), np.random.default_rng(3)
    x = random.standard_normal((1, 2, *lengths))
    steps = [
        (sign * (edge + 1e-3 * k) for sign in (-1, 1) for edge in (1 - 1 / n, 1) for k in (-1, 0, 1))
        for n in lengths[::-1]
    ]
    steps = [[*around, 3.0, 0.1] for around in steps]
    grid = np.array(list(itertools.product(*steps))[:: 3 if axes == 2 else 23])
    grid = grid.reshape((1,) * axes + grid.shape)
    modes = ("bilinear", "nearest", "bicubic")[: 5 - axes]
    for options in itertools.product(modes, ("zeros", "border", "reflection"), (False, True)):
        leaves = tensor(x), tensor(grid)
        with GradManager().attach(leaves) as gm:
            found = F.grid_sample(*leaves, *options)
            weights = random.standard_normal(found.shape)
            gm.backward(found, weights)
        given = [torch.tensor(a, requires_grad=True) for a in (x, grid)]
        expected = torch.nn.functional.grid_sample(*given, *options)
        is_torchs(found, expected.detach())
        for leaf, slope in zip(leaves, torch.autograd.grad(expected, given, torch.tensor(weights)), strict=True):
            np.testing.assert_allclose(leaf.grad, slope.numpy(), atol=1e-9, err_msg=str(options))


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["border", "reflection"])
def test_a_position_on_either_edge_has_no_slope(padding_mode, corners):
    edge = 1.0 if corners else 0.75
    grid = tensor([[[[x, y] for x in (-edge, edge) for y in (-edge, edge)]]])
    with GradManager().attach(grid) as gm:
        gm.backward(np.sum(F.grid_sample(np.arange(16.0).reshape(1, 1, 4, 4), grid, "bilinear", padding_mode, corners)))
    assert not grid.grad.numpy().any()


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize(
    ("shape", "positions"),
    [((0, 2, 3, 4), (0, 2, 1, 2)), ((2, 0, 3, 4), (2, 2, 1, 2)), ((1, 2, 2, 3, 4), (1, 0, 2, 1, 3))],
)
def test_samples_of_no_images_channels_or_positions_are_none(shape, positions, mode):
    x, grid = tensor(np.ones(shape)), tensor(np.zeros(positions))
    with GradManager().attach([x, grid]) as gm:
        z = F.grid_sample(x, grid, mode)
        gm.backward(np.sum(z))
    assert z.shape == (*shape[:2], *positions[1:-1])
    assert not x.grad.numpy().any()
    assert x.grad.shape == shape
    assert grid.grad.shape == positions


@pytest.mark.parametrize("far", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_positions_that_are_no_numbers_read_nothing(far, mode):
    """Of a plane of ones amid zeros: nothing, or NaN where the weights are; and the other positions as ever."""
    grid = np.array([[[[far, 0.0], [0.0, 0.0]]]])
    with np.errstate(all="ignore"):
        z = F.grid_sample(np.ones((1, 1, 5, 5)), grid, mode)
    assert z[0, 0, 0, 1] == pytest.approx(1.0)
    assert z[0, 0, 0, 0] == 0 or np.isnan(z[0, 0, 0, 0])


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: F.pad(np.ones((2, 3)), (1,)), errors.ShapeError, "a pair for each of the last axes, at most 2"),
        (lambda: F.pad(np.ones((2, 3)), 1), errors.ShapeError, "found 1"),
        (lambda: F.pad(np.ones((2, 3)), (3, 0), "reflect"), errors.ShapeError, "'reflect' can't pad an axis of 3"),
        (lambda: F.pad(np.ones((2, 3)), (-2, -2)), errors.ShapeError, "can't pad an axis of 3 numbers by"),
        (lambda: F.pad(np.ones(3), (1, 1), "edge"), ValueError, "mode must be one of 'constant' 'reflect'"),
        (lambda: F.pad(np.ones(3), (1, 1), "circular", 2.0), ValueError, "takes no value; found 2.0"),
        (lambda: F.interpolate(np.ones((2, 3)), 3), errors.ShapeError, "with 1 to 3 further axes"),
        (lambda: F.interpolate(np.ones((1, 1, 3)), 3, mode="bilinear"), ValueError, "'linear' for an input"),
        (lambda: F.interpolate(np.ones((1, 1, 3))), ValueError, "one of size and scale_factor; found size=None"),
        (lambda: F.interpolate(np.ones((1, 1, 3)), 3, 2), ValueError, "one of size and scale_factor"),
        (lambda: F.interpolate(np.ones((1, 1, 3)), scale_factor=0.1), errors.ShapeError, "at least 1; found .0."),
        (lambda: F.interpolate(np.ones((1, 1, 3)), (2, 2)), errors.ShapeError, "one for each of 1 axes"),
        (lambda: F.interpolate(np.ones((1, 1, 3)), 2, align_corners=True), ValueError, "align_corners is for"),
        (
            lambda: F.interpolate(np.ones((1, 1, 3, 3)), 2, mode="bilinear", antialias=True),
            ValueError,
            "antialias=True is not supported",
        ),
        (lambda: F.grid_sample(np.ones((1, 1, 3)), np.ones((1, 1, 1))), errors.ShapeError, "grid_sample takes"),
        (
            lambda: F.grid_sample(np.ones((1, 1, 3, 3)), np.ones((1, 1, 1, 3))),
            errors.ShapeError,
            r"found \(1, 1, 3, 3\) and \(1, 1, 1, 3\)",
        ),
        (
            lambda: F.grid_sample(np.ones((1, 1, 2, 3, 3)), np.ones((1, 1, 1, 1, 3)), "bicubic"),
            ValueError,
            "mode must be one of 'bilinear' 'nearest'",
        ),
        (lambda: F.affine_grid(np.ones((1, 2, 2)), (1, 1, 2, 2)), errors.ShapeError, "affine_grid takes theta"),
    ],
)
def test_refusals(call, kind, said):
    with pytest.raises(kind, match=said):
        call()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("lengths", [(4, 8), (2, 4, 8)])
def test_a_point_on_an_edge_of_the_numbers_has_no_slope_across_it(lengths, padding, corners, dtype):
    """As in torch: at the first and the last number of an axis, and beyond, the derivative is 0."""
    axes = len(lengths)
    x = tensor(np.random.default_rng(0).normal(size=(1, 1, *lengths)).astype(dtype))
    for k in range(axes):
        edge = 1.0 if corners else 1 - 1 / lengths[::-1][k]
        points = np.full((4, axes), 0.21)
        points[:, k] = -edge, edge, -edge + 0.1, edge - 0.1
        grid = tensor(points.reshape(1, 4, *(1,) * (axes - 1), axes).astype(dtype))
        with GradManager().attach(grid) as gm:
            gm.backward(np.sum(F.grid_sample(x, grid, padding_mode=padding, align_corners=corners)))
        slopes = grid.grad.numpy().reshape(4, axes)[:, k]
        assert slopes[:2].tolist() == [0.0, 0.0]
        assert (slopes[2:] != 0).all()
