"""What turns gradients into steps: AdamW for everything, or Muon for the weight matrices and AdamW for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

OPTIMIZERS = ("adamw", "muon")

_CODES = re.compile(r"embed|_tokens?\.weight$")  # and not cross_attn_token_to_image, a matrix as others are
_SMALLEST_SIDE = 32  # of a matrix that Muon takes
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5


class Optimizer:
    """The optimizers of a run, as one.

    Args:
        kind: one of `OPTIMIZERS`.
        named: the parameters by name; vectors, embeddings and tokens are not decayed.
        rate: learning rate.
        weight_decay: of matrices and kernels, times the rate a step.
    """

    def __init__(self, kind: str, named: Iterable[tuple[str, nn.Parameter]], rate: float, weight_decay: float) -> None:
        matrices: list[nn.Parameter] = []
        decayed: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in named:
            if parameter.ndim < 2 or _CODES.search(name):
                others.append(parameter)
            elif kind == "muon" and parameter.ndim == 2 and min(parameter.shape) >= _SMALLEST_SIDE:
                matrices.append(parameter)
            else:
                decayed.append(parameter)
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._all: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True)]
        if matrices:
            self._all.append(Muon(matrices, rate, weight_decay))

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimizer in self._all:
            optimizer.zero_grad(set_to_none=True)

    def step(self, rate: float) -> None:
        """Go one step at a learning rate."""
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def state(self) -> list[dict[str, Any]]:
        """Return what a resumed run needs."""
        return [optimizer.state_dict() for optimizer in self._all]

    def load(self, states: list[dict[str, Any]]) -> None:
        """Take over what `state` returned.

        Raises:
            ValueError: it is of another kind of optimizer, or of other parameters.
        """
        for optimizer, state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)


class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal: no direction of a matrix is learned faster than another.

    Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with the scale of Liu et
    al., "Muon is Scalable for LLM Training" (2025), section 2.2, which lets it share AdamW's learning rate.
    `torch.optim.Muon` is the same in bfloat16, which most processors emulate: 1.25 s a step of this model on one core,
    against 0.32 s here.
    """

    def __init__(self, matrices: list[nn.Parameter], rate: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": rate, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Go one step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                mean = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                direction = orthogonal(parameter.grad.lerp(mean, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction, alpha=-group["lr"] * 0.2 * max(parameter.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Bring the singular values of a matrix near 1 (0.7..1.2), by Newton-Schulz iterations of the fifth order."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    first, third, fifth = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x.T if tall else x


__all__ = ["OPTIMIZERS", "Muon", "Optimizer", "orthogonal"]
