"""The policy: a causal transformer of some 60,000 parameters, with what reinforcement learning asks of a language model.

`Policy.sample` draws a group of answers for each prompt and says how likely each token was; `logprobs` says how likely given
answers are, with gradients. For a real model these two are what an inference engine and a training framework do.
"""

import torch
import torch.nn.functional as F
from torch import nn

Cache = list[torch.Tensor]  # of one block: keys and values of the tokens so far


def own_device() -> torch.device:
    """This process's GPU, or the CPU where there is none."""
    return torch.device(torch.accelerator.current_accelerator(check_available=True) or "cpu")


class Policy(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int = 48, heads: int = 4, layers: int = 2) -> None:
        """`length`: tokens of the longest prompt and its answer."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, caches: list[Cache] | None = None, start: int = 0) -> torch.Tensor:
        """The logits of the token after each: (N, T) -> (N, T, vocabulary). `caches` has what came before `start`."""
        x = self.tokens(tokens) + self.places.weight[start : start + tokens.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i])
        return self.head(self.norm(x))

    @torch.no_grad()
    def sample(
        self,
        prompts: torch.Tensor,
        group: int,
        length: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`group` answers of `length` tokens to each of P prompts, and the log-probability of each token: twice (P, G, T).

        Each prompt is read once; after that a token costs one position (keys and values are kept). With a temperature of 0
        the most likely token is taken, with the log-probability that it has at 1.
        """
        caches: list[Cache] = [[] for _ in self.blocks]
        logits = self(prompts, caches)[:, -1].repeat_interleave(group, dim=0)
        for cache in caches:
            cache[:] = [part.repeat_interleave(group, dim=0) for part in cache]
        tokens, chances = [], []
        for place in range(prompts.shape[1], prompts.shape[1] + length):
            logs = F.log_softmax(logits / (temperature or 1.0), dim=-1)
            token = (
                torch.multinomial(logs.exp(), 1, generator=generator) if temperature else logs.argmax(1, keepdim=True)
            )
            tokens.append(token)
            chances.append(logs.gather(1, token))
            if len(tokens) < length:
                logits = self(token, caches, place)[:, -1]
        shape = (len(prompts), group, length)
        return torch.cat(tokens, dim=1).view(shape), torch.cat(chances, dim=1).view(shape)


def logprobs(
    model: nn.Module, prompts: torch.Tensor, completions: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Of each token of G completions of each of P prompts: (P, L), (P, G, T) -> (P, G, T).

    `model` is a Policy, or what torch wraps around one (DistributedDataParallel, say).
    """
    count, group, length = completions.shape
    repeated = prompts[:, None].expand(count, group, prompts.shape[1])
    rows = torch.cat((repeated, completions), dim=2).flatten(0, 1)
    logits = model(rows[:, :-1])[:, prompts.shape[1] - 1 :]
    chances = F.log_softmax(logits / temperature, dim=-1)
    return chances.gather(2, completions.flatten(0, 1)[..., None]).view(count, group, length)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        count, length, width = x.shape
        heads = self.project(self.before_attention(x)).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
        if cache:
            key, value = (torch.cat(pair, dim=2) for pair in zip(cache, (key, value), strict=True))
        seen = F.scaled_dot_product_attention(
            query, key, value, is_causal=length > 1
        )  # a prompt; later tokens come alone and see all
        if cache is not None:
            cache[:] = [key, value]
        x = x + self.merge(seen.transpose(1, 2).reshape(count, length, width))
        return x + self.mlp(self.before_mlp(x))
