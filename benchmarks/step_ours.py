"""Turnscale's side of ``step_trl.py``: rollout, credit and update as the training loop does them."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from step_setting import (
    ADAPTER,
    BASE,
    BATCH,
    CLIP_NORM,
    LORA_ALPHA,
    LORA_RANK,
    LR,
    WORDS,
    Setting,
    never_ending,
    prompt_texts,
    reward,
    setting_of,
    some_words,
)
from workers import Orders, clock, forget, memory, rise

from turnscale.agent.adapter import attach, policy_parameters, save_adapter
from turnscale.agent.checkpoint import load, make_local, save
from turnscale.agent.config import Architecture, LoraSpec, ModelConfig
from turnscale.agent.decode import make_decoder
from turnscale.agent.forward import action_logprobs
from turnscale.agent.rollout import Rollouts, rollout
from turnscale.batch import TurnBatch
from turnscale.config.schema import Training
from turnscale.envs.protocol import Limits, Step, Task
from turnscale.methods import Method, load_method
from turnscale.objective.aggregate import denominators
from turnscale.objective.policy import policy_loss
from turnscale.train.update import update_policy


class Scripted:
    """Answers each turn with random words until the last one."""

    def __init__(self, setting: Setting, texts: list[str]) -> None:
        self._setting, self._texts, self._turns = setting, texts, list[str]()

    def reset(self, task: Task, seed: int) -> str:
        self._rng, self._turns = random.Random(seed), []
        return self._texts[task.index]

    def step(self, turn: str, complete: bool = True) -> Step:
        self._turns.append(turn)
        if len(self._turns) == self._setting.turns:
            return Step("", done=True, reward=reward(self._turns), success=True)
        return Step(some_words(self._rng, self._setting.observation_words))

    def clone(self) -> Scripted:
        raise NotImplementedError("nothing is forked here")

    def anchor(self) -> str:
        return str(len(self._turns))

    def close(self) -> None:
        return None


class Ours:
    """The commands ``batch``, ``score``, ``step`` and ``memory``."""

    def __init__(self, folder: Path, setting: Setting, method: str) -> None:
        self.folder, self.setting = folder, setting
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.method: Method = load_method(method, {"credit.eps": 1e-4})  # TRL's
        config = model_config(setting)
        if not (folder / BASE).exists():
            model, tokenizer = make_local(config, WORDS, seed=0)
            never_ending(model, int(tokenizer.eos_token_id))
            save(model, tokenizer, config, folder / BASE)
        self.agent = attach(load(folder / BASE), seed=0, value_heads=0)
        generator = torch.Generator().manual_seed(0)
        for parameter in policy_parameters(self.agent):
            parameter.data.normal_(0.0, 0.02, generator=generator)
        save_adapter(self.agent, folder / ADAPTER)
        self.optimiser = torch.optim.AdamW(policy_parameters(self.agent), lr=LR, weight_decay=0.0)
        self.training = Training(
            steps=1, prompts=setting.prompts, group_size=setting.group, minibatches=1, epochs=1, lr=LR,
            critic_lr=LR, grad_clip=CLIP_NORM,
        )  # fmt: skip
        self.texts = prompt_texts(setting)
        self.limits = Limits(setting.turns, setting.turn_tokens, setting.row_tokens + 2)
        self.done = 0
        self.baseline = memory()["resident"]

    def play(self) -> Rollouts:
        """The next step's rollouts."""
        first = self.done * self.setting.prompts
        chosen = [first + row // self.setting.group for row in range(self.setting.rows)]
        return rollout(
            make_decoder(self.agent.model, "policy"),
            self.agent.chat,
            lambda: Scripted(self.setting, self.texts),
            [Task("benchmark", "1", "train", index) for index in chosen],
            range(self.setting.rows),
            self.limits,
            torch.Generator().manual_seed(self.done),
            task_index=chosen,
            group=chosen,
        )

    def step(self, peaks: bool = False) -> dict[str, float]:
        """One step of training; with ``peaks`` also how much memory rollout and update took, in MiB."""
        before = forget() if peaks else 0.0
        cpu, wall = clock()
        played = self.play()
        batch, parted = played.batch, clock()
        rollout_peak = rise(before) if peaks else 0.0
        before = forget() if peaks else 0.0
        advantages = self.method.normalise(self.method.credit(batch).advantages, batch)
        metrics = update_policy(
            self.agent, self.method, batch, advantages, batch.logp_rollout, self.optimiser, self.training,
            torch.Generator().manual_seed(self.done),
        )  # fmt: skip
        self.done += 1
        end = clock()
        tokens = int(batch.length.sum()) - batch.size  # the last turn's closing token is never read
        return {
            "cpu": end[0] - cpu,
            "wall": end[1] - wall,
            "rollout_cpu": parted[0] - cpu,
            "row_tokens": tokens,
            "gap": metrics["rollout_gap"],
            "reward": float(batch.reward.mean()),
            "rollout_peak": rollout_peak,
            "update_peak": rise(before) if peaks else 0.0,
        }

    def batch(self) -> int:
        """Play a batch, and write its ids with made-up advantages and old log-probabilities that differ."""
        batch = self.play().batch
        generator = torch.Generator().manual_seed(1)
        shift = 0.1 if self.method.name == "grpo" else 2e-3  # either side of the clip bounds
        old = batch.logp_rollout + shift * torch.randn(batch.ids.shape, generator=generator)
        per_row = torch.randn(batch.size, generator=generator)
        save_file(
            {
                "ids": batch.ids,
                "mask": batch.action_mask,
                "length": batch.length,
                "turn": batch.turn,
                "old": old.masked_fill(~batch.action_mask, 0.0),
                "advantage": per_row,
            },
            self.folder / BATCH,
        )
        return batch.size

    def score(self) -> dict[str, float]:
        """Log-probabilities of the written batch, the loss on it and its gradient, to a file."""
        given = load_file(self.folder / BATCH)
        mask = given["mask"]
        row = torch.zeros(len(mask), dtype=torch.long)
        batch = TurnBatch(
            ids=given["ids"], action_mask=mask, turn=given["turn"], logp_rollout=given["old"],
            length=given["length"], reward=given["advantage"], success=row.bool(), truncated=row.bool(),
            task=row, group=row,
        )  # fmt: skip
        logp, _ = action_logprobs(self.agent.model, batch, "policy")
        advantages = torch.where(mask, given["advantage"][:, None], 0.0)
        loss, metrics = policy_loss(self.method, logp, batch, advantages, given["old"], denominators(batch))
        loss.backward()
        found = {"logp": logp.detach()[mask], "loss": loss.detach()[None]}
        for name, parameter in self.agent.model.named_parameters():
            if parameter.grad is not None:
                found["grad " + name.replace(".policy.", ".")] = parameter.grad.clone()
                parameter.grad = None
        save_file(found, self.folder / "ours.safetensors")
        return {"loss": float(loss.detach()), "clip_fraction": metrics["clip_fraction"]}

    def memory(self) -> dict[str, float]:
        """Peak, and how much of it came on top of imports and weights."""
        peak = memory()["peak"]
        return {"peak": peak, "above": peak - self.baseline}


def model_config(setting: Setting) -> ModelConfig:
    """The default local model, or a wider one of the same proportions."""
    scale = setting.hidden / 64
    shape = Architecture(hidden=setting.hidden, feed_forward=int(160 * scale), head_dim=int(16 * scale))
    return ModelConfig(
        name="benchmark", kind="local", architecture=shape, lora=LoraSpec(r=LORA_RANK, alpha=LORA_ALPHA)
    )


def main() -> None:
    """Arguments: scratch folder, workload, width, method."""
    folder, workload, hidden, method = sys.argv[1:]
    orders = Orders()
    side: Any = Ours(Path(folder), setting_of(workload, int(hidden)), method)
    orders.serve({name: getattr(side, name) for name in ("batch", "score", "step", "memory")})


if __name__ == "__main__":
    main()
