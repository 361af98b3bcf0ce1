"""The task: sort digits. `3141>` is a prompt, `1134` its answer; what an answer earns is checked by a rule.

    python examples/grpo/task.py          # prints a few prompts and what answers to them earn

An answer earns the share of its digits that are in the right place. Random digits earn 1 / base: 0.1 with ten of them. A
tenth of all prompts is held out: no training prompt is one of them.
"""

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Sorting:
    """Numbers of `digits` digits to the given base. Tokens are the digits, and `base` itself, which ends a prompt."""

    digits: int = 4
    base: int = 10

    @property
    def vocabulary(self) -> int:
        return self.base + 1

    @property
    def length(self) -> int:
        """Tokens of a prompt and its answer."""
        return 2 * self.digits + 1

    def prompts(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Training prompts, drawn with replacement: int64 of shape (count, digits + 1)."""
        numbers = shuffled_numbers(self.base**self.digits)[self.held_out_count :]
        return self.spell(numbers[torch.randint(len(numbers), (count,), generator=generator)])

    def held_out(self, count: int | None = None) -> torch.Tensor:
        """The first `count` (else all) of the prompts that are never trained on."""
        return self.spell(shuffled_numbers(self.base**self.digits)[: self.held_out_count][:count])

    @property
    def held_out_count(self) -> int:
        return int(self.base**self.digits // 10)

    def spell(self, numbers: torch.Tensor) -> torch.Tensor:
        places = self.base ** torch.arange(self.digits - 1, -1, -1)
        digits = numbers[:, None] // places % self.base
        return torch.cat((digits, torch.full((len(numbers), 1), self.base)), dim=1)

    def answers(self, prompts: torch.Tensor) -> torch.Tensor:
        """The right answers: of shape (..., digits)."""
        return prompts[..., : self.digits].sort(dim=-1).values

    def rewards(self, prompts: torch.Tensor, completions: torch.Tensor) -> torch.Tensor:
        """What each of G completions of P prompts earns, in [0, 1]: (P, digits + 1), (P, G, digits) -> (P, G)."""
        right = completions == self.answers(prompts)[:, None]
        return right.float().mean(dim=-1)

    def text(self, tokens: torch.Tensor) -> str:
        """One row of tokens as text."""
        return "".join("0123456789abcdefghijklmnopqrstuvwxyz"[t] if t < self.base else ">" for t in tokens.tolist())


@cache
def shuffled_numbers(count: int) -> torch.Tensor:
    """0 to count - 1 in an order that is always the same: its first tenth is held out."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))


if __name__ == "__main__":
    task = Sorting()
    prompts = task.prompts(4, torch.Generator().manual_seed(0))
    guesses = torch.randint(task.base, (4, 2, task.digits))
    guesses[:, 0] = task.answers(prompts)
    for prompt, pair, earned in zip(prompts, guesses, task.rewards(prompts, guesses).tolist(), strict=True):
        answers = "  ".join(
            f"{task.text(answer)} earns {reward:.2f}" for answer, reward in zip(pair, earned, strict=True)
        )
        print(f"{task.text(prompt)}  {answers}")
