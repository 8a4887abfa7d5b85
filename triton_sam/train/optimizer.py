"""The optimizers: AdamW for all parameters, or Muon for the weight matrices and AdamW for the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
    `torch.optim.Muon` implements the same in bfloat16, which most CPUs emulate: on one core, a step of this model takes
    1.25 s with it and 0.32 s with this class.
    """

    def __init__(self, matrices: list[nn.Parameter], rate: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": rate, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all matrices once."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                mean = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                direction = orthogonalise(parameter.grad.lerp(mean, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction, alpha=-group["lr"] * 0.2 * max(parameter.shape) ** 0.5)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return a matrix with the same singular vectors and singular values of about 1 (0.7..1.2).

    Computed by Newton-Schulz iterations of fifth order, as by Jordan et al. (2024).
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    first, third, fifth = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x.T if tall else x


__all__ = ["OPTIMIZERS", "Muon", "Optimizer", "orthogonalise"]
