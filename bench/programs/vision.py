"""Programs of computer vision: bundle adjustment, registration of images, a residual network."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from bench.programs.program import F32, Array, Program, Step, copied, training, training_in_torch
from gradmgr import GradManager, functional, nn, tensor, vmap

# ---------------------------------------------------------------- bundle adjustment

_FOCAL, _DISTORTION = 500.0, 0.1


def bundle_adjustment(points: int = 1000) -> Program:
    """Jacobians of each observation: where a camera, turned and moved, sees a point; 2x9 for each point."""
    rng = np.random.default_rng(0)
    parameters = np.concatenate(
        [rng.normal(0, 0.3, (points, 3)), rng.normal(0, 0.1, (points, 3)), rng.normal((0, 0, 5), 0.5, (points, 3))], 1
    )

    def project(parameters: Any) -> Any:
        rotation, translation, point = parameters[:3], parameters[3:6], parameters[6:]
        angle = gnp.sqrt(gnp.sum(rotation * rotation))
        axis = rotation / angle
        cosine, sine = gnp.cos(angle), gnp.sin(angle)
        turned = point * cosine + gnp.cross(axis, point) * sine + axis * (axis @ point) * (1 - cosine)
        seen = turned + translation
        flat = seen[:2] / seen[2]
        return _FOCAL * flat * (1 + _DISTORTION * gnp.sum(flat * flat))

    def here() -> Step:
        jacobians = vmap(functional.jacobian(project))
        return lambda: [jacobians(parameters)]

    def in_torch(torch: Any) -> Step:
        def project(parameters: Any) -> Any:
            rotation, translation, point = parameters[:3], parameters[3:6], parameters[6:]
            angle = torch.sqrt(torch.sum(rotation * rotation))
            axis = rotation / angle
            cosine, sine = torch.cos(angle), torch.sin(angle)
            across = torch.linalg.cross(axis, point)
            turned = point * cosine + across * sine + axis * (axis @ point) * (1 - cosine)
            seen = turned + translation
            flat = seen[:2] / seen[2]
            return _FOCAL * flat * (1 + _DISTORTION * torch.sum(flat * flat))

        jacobians, given = torch.vmap(torch.func.jacrev(project)), torch.tensor(parameters)
        return lambda: [jacobians(given)]

    return Program(f"bundle adjustment, {points:,} Jacobians of 2x9", here, in_torch)


# ---------------------------------------------------------------- registration


def _picture(side: int) -> Array:
    """Return a smooth image."""
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    return (np.sin(5 * x + np.cos(4 * y)) + np.exp(-4 * (x**2 + y**2))).astype(F32)


def registration(side: int = 128) -> Program:
    """A step of gradient descent that finds the affine map of an image onto another, by bilinear sampling."""
    moving, rate, shape = _picture(side), 0.01, (1, 1, side, side)
    fixed = np.roll(moving, (side // 20, side // 30), (0, 1))
    # Numbers at which no pixel falls onto another, where the slope of the sampling jumps.
    first = np.array([[1.0513, 0.0827, 0.0191], [-0.0619, 0.9337, -0.0543]], F32)

    def here() -> Step:
        theta = tensor(first)
        gm = GradManager().attach(theta)
        f, image = nn.functional, moving[None, None]

        def step() -> list[Any]:
            nonlocal theta
            with gm:
                grid = f.affine_grid(theta[None], shape, align_corners=True)
                found = f.grid_sample(image, grid, padding_mode="border", align_corners=True)[0, 0]
                loss = gnp.mean((found - fixed) ** 2)
                gm.backward(loss)
            theta -= rate * theta.grad
            slope, theta.grad = theta.grad, None
            return [loss, slope]

        return step

    def in_torch(torch: Any) -> Step:
        theta = torch.tensor(first).requires_grad_()
        image, target = torch.tensor(moving)[None, None], torch.tensor(fixed)
        f = torch.nn.functional

        def step() -> list[Any]:
            grid = f.affine_grid(theta[None], shape, align_corners=True)
            found = f.grid_sample(image, grid, padding_mode="border", align_corners=True)[0, 0]
            loss = torch.mean((found - target) ** 2)
            loss.backward()
            slope, theta.grad = theta.grad, None
            with torch.no_grad():
                theta.sub_(slope, alpha=rate)
            return [loss, slope]

        return step

    return Program(f"registration of images of {side} x {side}", here, in_torch)


# ---------------------------------------------------------------- residual network


class _Block(nn.Module):
    def __init__(self, channels: int, rng: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, rng=rng)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, rng=rng)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        h = nn.functional.relu(self.norm1(self.conv1(x)))
        return nn.functional.relu(self.norm2(self.conv2(h)) + x)


class _ResNet(nn.Module):
    def __init__(self, channels: int, depth: int, rng: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False, rng=rng)
        self.blocks = nn.Sequential(*[_Block(channels, rng) for _ in range(depth)])
        self.scores = nn.Linear(channels, 10, rng=rng)

    def forward(self, x: Any) -> Any:
        return self.scores(gnp.mean(self.blocks(self.stem(x)), axis=(2, 3)))


def _resnet_in_torch(torch: Any, channels: int, depth: int) -> Any:
    f = torch.nn.functional

    class Block(torch.nn.Module):  # type: ignore[misc]  # torch is imported where it is installed
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm1 = torch.nn.BatchNorm2d(channels)
            self.conv2 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm2 = torch.nn.BatchNorm2d(channels)

        def forward(self, x: Any) -> Any:
            h = f.relu(self.norm1(self.conv1(x)))
            return f.relu(self.norm2(self.conv2(h)) + x)

    class ResNet(torch.nn.Module):  # type: ignore[misc]  # as above
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Conv2d(3, channels, 3, padding=1, bias=False)
            self.blocks = torch.nn.Sequential(*[Block() for _ in range(depth)])
            self.scores = torch.nn.Linear(channels, 10)

        def forward(self, x: Any) -> Any:
            return self.scores(self.blocks(self.stem(x)).mean((2, 3)))

    return ResNet()


def resnet(batch: int = 32, channels: int = 32, side: int = 16, depth: int = 3) -> Program:
    """A step of Adam on a stack of residual blocks with batch norm."""
    rng = np.random.default_rng(1)
    images, labels = rng.normal(size=(batch, 3, side, side)).astype(F32), rng.integers(0, 10, batch)

    def made() -> _ResNet:
        return _ResNet(channels, depth, np.random.default_rng(2))

    def here() -> Step:
        model = made()
        return training(model, lambda: nn.functional.cross_entropy(model(images), labels))

    def in_torch(torch: Any) -> Step:
        model = copied(torch, _resnet_in_torch(torch, channels, depth), made()).to(memory_format=torch.channels_last)
        x, y = torch.tensor(images).to(memory_format=torch.channels_last), torch.tensor(labels)
        return training_in_torch(torch, model, lambda: torch.nn.functional.cross_entropy(model(x), y))

    return Program(f"ResNet, {depth} blocks of {channels}, {batch} of {side} x {side}", here, in_torch)
