"""Tests of what the programs of examples/grpo share: the task, the policy, the loss."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.examples.running import EXAMPLES

torch = pytest.importorskip("torch", reason="the examples need torch")

NAMES = ("task", "policy", "grpo", "progress", "settings")


@pytest.fixture(scope="module")
def grpo() -> Iterator[Any]:
    """The modules of examples/grpo by name, as its programs import them; forgotten afterwards."""
    known = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    sys.path.insert(0, str(EXAMPLES / "grpo"))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    finally:
        sys.path.remove(str(EXAMPLES / "grpo"))
        for name in NAMES:
            sys.modules.pop(name, None)
        sys.modules.update(known)


# --- the task


def test_an_answer_earns_the_share_of_its_digits_in_the_right_place(grpo: Any) -> None:
    task = grpo.task.Sorting(digits=4, base=10)
    prompts = torch.tensor([[3, 1, 4, 1, 10], [9, 9, 0, 5, 10]])
    assert task.answers(prompts).tolist() == [[1, 1, 3, 4], [0, 5, 9, 9]]
    completions = torch.tensor([[[1, 1, 3, 4], [1, 1, 4, 3]], [[5, 0, 9, 9], [1, 1, 1, 1]]])
    assert task.rewards(prompts, completions).tolist() == [[1.0, 0.5], [0.5, 0.0]]
    assert [task.text(row) for row in (prompts[0], completions[0, 0])] == ["3141>", "1134"]


def test_no_training_prompt_is_held_out(grpo: Any) -> None:
    task = grpo.task.Sorting(digits=2, base=6)
    held = {tuple(row) for row in task.held_out().tolist()}
    trained = {tuple(row) for row in task.prompts(2000, torch.Generator().manual_seed(0)).tolist()}
    assert (len(held), len(trained), held & trained) == (3, 33, set())
    assert task.held_out(2).tolist() == task.held_out().tolist()[:2]


# --- the policy


def test_what_is_sampled_has_the_log_probabilities_that_the_whole_text_has(grpo: Any) -> None:
    """Keys and values that are kept, and all of it at once."""
    torch.manual_seed(0)
    task = grpo.task.Sorting(digits=3, base=6)
    policy = grpo.policy.Policy(task.vocabulary, task.length, width=16)
    prompts = task.prompts(5, torch.Generator().manual_seed(1))
    for temperature in (1.0, 0.5):
        tokens, chances = policy.sample(prompts, 4, 3, temperature)
        assert tokens.shape == chances.shape == (5, 4, 3)
        again = grpo.policy.logprobs(policy, prompts, tokens, temperature)
        assert torch.allclose(again, chances, atol=1e-5)
        assert again.requires_grad and not chances.requires_grad


def test_at_temperature_0_the_most_likely_token_is_taken(grpo: Any) -> None:
    torch.manual_seed(0)
    task = grpo.task.Sorting(digits=3, base=6)
    policy = grpo.policy.Policy(task.vocabulary, task.length, width=16)
    prompts = task.held_out(4)
    tokens, _ = policy.sample(prompts, 1, 3, temperature=0)
    whole = torch.cat((prompts, tokens[:, 0]), dim=1)
    assert policy(whole)[:, 3:-1].argmax(2).tolist() == tokens[:, 0].tolist()


def test_a_generator_makes_samples_repeatable(grpo: Any) -> None:
    policy = grpo.policy.Policy(7, 7, width=16)
    prompts = grpo.task.Sorting(3, 6).held_out(2)
    first, second = (policy.sample(prompts, 4, 3, 1.0, torch.Generator().manual_seed(5))[0] for _ in range(2))
    assert torch.equal(first, second)


# --- the loss, against what is computed by hand


def test_advantages_of_a_group(grpo: Any) -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert grpo.grpo.advantages(rewards, scale=False).tolist() == [[-0.5, 0.5], [0.0, 0.0]]
    scaled = grpo.grpo.advantages(rewards)  # the standard deviation is 0.5, and 0.01 is added to it
    assert scaled[0].tolist() == pytest.approx([-0.5 / 0.51, 0.5 / 0.51])
    assert scaled[1].tolist() == [0.0, 0.0]


def test_the_loss_is_clipped_where_moving_on_would_gain(grpo: Any) -> None:
    old = torch.zeros(1, 4, 1)
    ratios = torch.tensor([1.1, 1.5, 0.5, 1.5]).view(1, 4, 1)
    gains = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    # 1.1 x 1; 1.5 is clipped to 1.2; 0.5 x -1 is clipped to 0.8 x -1; 1.5 x -1 is a loss, and counts whole
    expected = -(1.1 + 1.2 - 0.8 - 1.5) / 4
    assert grpo.grpo.policy_loss(ratios.log(), old, gains).item() == pytest.approx(expected, abs=1e-6)
    assert grpo.grpo.clipped_share(ratios.log(), old).item() == pytest.approx(0.75)
    wider = grpo.grpo.policy_loss(ratios.log(), old, gains, clip=(0.2, 0.6))
    assert wider.item() == pytest.approx(-(1.1 + 1.5 - 0.8 - 1.5) / 4, abs=1e-6)


def test_the_gradient_raises_what_is_better_than_its_group(grpo: Any) -> None:
    new = torch.zeros(1, 2, 1, requires_grad=True)
    grpo.grpo.policy_loss(new, torch.zeros(1, 2, 1), torch.tensor([[1.0, -1.0]])).backward()
    assert new.grad.flatten().tolist() == [-0.5, 0.5]  # descent adds to the first


def test_the_divergence_from_a_reference(grpo: Any) -> None:
    new, reference = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.25]).log()
    expected = (0.5 - math.log(0.5) - 1) / 2  # the other token is as likely in both: 0
    assert grpo.grpo.kl_to(reference, new).item() == pytest.approx(expected)


def test_batches_are_joined_and_divided_among_learners(grpo: Any) -> None:
    def batch(version: int, count: int) -> Any:
        groups = torch.full((count, 2, 3), version)
        return grpo.grpo.Samples(version, torch.full((count, 4), version), groups, groups.float(), torch.ones(count, 2))

    joined = grpo.grpo.Samples.join([batch(7, 2), batch(4, 1)])
    assert (joined.version, len(joined)) == (4, 6)
    assert joined.prompts[:, 0].tolist() == [7, 7, 4]
    parts = [joined.part(rank, 2) for rank in range(2)]
    assert [part.prompts[:, 0].tolist() for part in parts] == [[7, 4], [7]]
    assert [len(part) for part in parts] == [4, 2]


# --- the record of a run


def test_a_record_has_the_shape_that_the_plot_reads(grpo: Any, tmp_path: Path, capsys: Any) -> None:
    progress = grpo.progress.Progress(20)
    for step in range(1, 21):
        progress.add(mean_reward=step / 20)
        progress.show(step, "...")
    progress.note("somebody was killed", mark="killed")
    progress.save(tmp_path / "curve.json", {"reward": ["mean reward"]})
    record = json.loads((tmp_path / "curve.json").read_text())
    (panel,) = record["panels"]
    assert panel["series"][0]["y"][-1] == 1.0 and panel["series"][0]["label"] == "mean reward"
    assert [event["label"] for event in record["events"]] == ["killed"]
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("step ")] == [f"step {n}/20  ..." for n in range(2, 21, 2)]
    assert progress.recent("mean reward", 2) == pytest.approx(0.975)
