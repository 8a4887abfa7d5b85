"""The optimizers: AdamW for all parameters, or Muon for the weight matrices and AdamW for the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

OPTIMIZERS = ("adamw", "muon")
"""The names of the optimizers."""

_EMBEDDINGS = re.compile(r"embed|_tokens?\.weight$")  # must not match the matrices of cross_attn_token_to_image
_MIN_MUON_SIDE = 32  # AdamW updates smaller matrices
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5


class Optimizer:
    """The optimizer of a run, which may combine AdamW and Muon.

    Args:
        kind: one of `OPTIMIZERS`.
        named: names and parameters. Vectors, embeddings and tokens get no weight decay.
        rate: learning rate.
        weight_decay: weight decay of matrices and convolution kernels; each step multiplies it by the learning rate.
    """

    def __init__(self, kind: str, named: Iterable[tuple[str, nn.Parameter]], rate: float, weight_decay: float) -> None:
        matrices: list[nn.Parameter] = []
        decayed: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in named:
            if parameter.ndim < 2 or _EMBEDDINGS.search(name):
                others.append(parameter)
            elif kind == "muon" and parameter.ndim == 2 and min(parameter.shape) >= _MIN_MUON_SIDE:
                matrices.append(parameter)
            else:
                decayed.append(parameter)
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True)
        ]
        if matrices:
            self._optimizers.append(Muon(matrices, rate, weight_decay))

    def zero_grad(self) -> None:
        """Reset the gradients of all parameters."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def step(self, rate: float) -> None:
        """Update all parameters once, with a given learning rate."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def state(self) -> list[dict[str, Any]]:
        """Return the state that a resumed run needs, one dictionary for each optimizer."""
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load(self, states: list[dict[str, Any]]) -> None:
        """Restore a state that `state` returned.

        Raises:
            ValueError: the state belongs to another kind of optimizer or to other parameters.
        """
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised steps, so that all directions of a matrix are learned at the same speed.

    Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with the scale factor of
    Liu et al., "Muon is Scalable for LLM Training" (2025), section 2.2, which allows the learning rate of AdamW.
    `torch.optim.Muon` computes in bfloat16 everywhere, which CPUs without AMX emulate: on one core of such a CPU, a
    step of this model took 1.25 s with it and 0.32 s in single precision. This class uses bfloat16 where it is fast,
    and treats all matrices of a shape together: 0.08 s instead of 0.23 s on two cores with AMX.
    """

    def __init__(self, matrices: list[nn.Parameter], rate: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": rate, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all matrices once."""
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for alike in _by_shape(group["params"]):
                wanted = torch.stack([self._add_to_mean(*pair, momentum) for pair in alike])
                exact_enough = wanted.to(torch.bfloat16) if _is_bfloat16_fast(wanted.device) else wanted
                scale = -rate * 0.2 * max(wanted.shape[1:]) ** 0.5
                for (parameter, _), direction in zip(alike, orthogonalise(exact_enough).to(wanted.dtype), strict=True):
                    parameter.mul_(1 - rate * group["weight_decay"])
                    parameter.add_(direction, alpha=scale)

    def _add_to_mean(self, parameter: nn.Parameter, gradient: Tensor, momentum: float) -> Tensor:
        """Add a gradient to the moving mean of a parameter. Returns the direction of Nesterov's momentum."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        mean = state["momentum"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(mean, momentum)


def _by_shape(parameters: Iterable[nn.Parameter]) -> Iterable[list[tuple[nn.Parameter, Tensor]]]:
    """Group the parameters that have gradients by their shape. Returns pairs of parameter and gradient."""
    groups: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            groups.setdefault(parameter.shape, []).append((parameter, parameter.grad))
    return groups.values()


@cache
def _is_bfloat16_fast(device: torch.device) -> bool:
    """Whether a device multiplies matrices in bfloat16 faster than in single precision."""
    if device.type != "cpu":
        return True
    is_supported = getattr(torch.cpu, "_is_amx_tile_supported", None)  # torch has no public way
    return bool(is_supported is not None and is_supported())


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and singular values of about 1 (0.7..1.2).

    Computed by Newton-Schulz iterations of fifth order, as by Jordan et al. (2024).

    Args:
        matrices: (..., M, N), of any floating-point type.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    first, third, fifth = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = first * x + (third * square + fifth * (square @ square)) @ x
    result: Tensor = x.mT if tall else x
    return result


__all__ = ["OPTIMIZERS", "Muon", "Optimizer", "orthogonalise"]
