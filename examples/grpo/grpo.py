"""GRPO: policy gradient with groups in place of a value function. Pure functions of tensors.

A group is what a policy answers to the same prompt, G times. How much better than the others of its group an answer is says
how much more likely it should become. Tensors have the shape (P, G) for P prompts, or (P, G, T) where each of T tokens has a
value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Samples:
    """What a generator makes: G answers to each of P prompts, and which weights it made them with."""

    version: int  # of the weights
    prompts: torch.Tensor  # (P, L)
    completions: torch.Tensor  # (P, G, T)
    logprobs: torch.Tensor  # (P, G, T): of each token, by the policy that drew it
    rewards: torch.Tensor  # (P, G)

    def __len__(self) -> int:
        """Answers, of all prompts."""
        prompts, group = self.rewards.shape
        return int(prompts * group)

    def to(self, device: torch.device) -> Samples:
        tensors = (self.prompts, self.completions, self.logprobs, self.rewards)
        return Samples(self.version, *(tensor.to(device) for tensor in tensors))

    def part(self, rank: int, count: int) -> Samples:
        """The prompts of one of `count` learners: each `count`-th one."""
        mine = slice(rank, None, count)
        return Samples(
            self.version, self.prompts[mine], self.completions[mine], self.logprobs[mine], self.rewards[mine]
        )

    @staticmethod
    def join(batches: Sequence[Samples]) -> Samples:
        """One of several; its version is the oldest."""
        return Samples(
            min(batch.version for batch in batches),
            torch.cat([batch.prompts for batch in batches]),
            torch.cat([batch.completions for batch in batches]),
            torch.cat([batch.logprobs for batch in batches]),
            torch.cat([batch.rewards for batch in batches]),
        )


def advantages(rewards: torch.Tensor, scale: bool = True) -> torch.Tensor:
    """How far each answer is above the mean of its group; with `scale` in standard deviations of the group: (P, G) -> (P, G).

    A group whose answers all earn the same teaches nothing: zeros.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    if not scale:
        return centred
    return centred / (centred.square().mean(dim=1, keepdim=True).sqrt() + 1e-2)


def policy_loss(
    new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, clip: tuple[float, float] = (0.2, 0.2)
) -> torch.Tensor:
    """What gradient descent makes small: log-probabilities (P, G, T) now and when drawn, and (P, G).

    The ratio of the two corrects for the policy having changed since the answers were drawn. Clipping, down and up, takes
    away the gain of moving further than that: it is also what makes samples of slightly older weights safe to use.
    """
    ratio = (new - old).exp()
    gain = advantages[..., None]
    return -torch.minimum(ratio * gain, ratio.clamp(1 - clip[0], 1 + clip[1]) * gain).mean()


def clipped_share(new: torch.Tensor, old: torch.Tensor, clip: tuple[float, float] = (0.2, 0.2)) -> torch.Tensor:
    """The share of tokens whose ratio lies outside of the clip range."""
    ratio = (new - old).exp()
    return ((ratio < 1 - clip[0]) | (ratio > 1 + clip[1])).float().mean()


def kl_to(reference: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """An estimate of the policy's divergence from a reference, from tokens that the policy drew: unbiased, never negative.

    Log-probabilities of both. Add it to the loss, times a small weight, where the policy must stay near what it was.
    """
    difference = reference - new
    return (difference.exp() - difference - 1).mean()
