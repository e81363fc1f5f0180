"""The state of one run between steps, and one step of it: rollout, credit, update."""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from peft import PeftModel
from torch import Tensor

from turnscale.agent.adapter import (
    Agent,
    attach,
    critic_parameters,
    load_adapter,
    policy_parameters,
    save_adapter,
)
from turnscale.agent.checkpoint import Checkpoint
from turnscale.agent.decode import Decoder, make_decoder
from turnscale.agent.episode import Prefix, told
from turnscale.agent.forward import action_logprobs
from turnscale.agent.privileged import teacher_logprobs
from turnscale.agent.rollout import Rollouts, rollout
from turnscale.batch import TurnBatch
from turnscale.config.schema import Training
from turnscale.envs.panels import Panels
from turnscale.envs.protocol import Family
from turnscale.envs.registry import FamilyConfig, load_family
from turnscale.evaluate import Sampler, attempt, contexts
from turnscale.files import replacing_folder, write_parquet
from turnscale.finite import require_finite
from turnscale.methods import Method
from turnscale.objective.value import explained_variance
from turnscale.seeding import numpy_stream, stream_seed, torch_stream
from turnscale.study import Run
from turnscale.track.columns import CRITIC, METRICS
from turnscale.track.run import RunLog
from turnscale.train import state
from turnscale.train.critic import read_heads, with_values
from turnscale.train.describe import critic_rows, describe, require_finite_batch
from turnscale.train.sampling import SCHEMES, Source
from turnscale.train.twins import TwinCritics
from turnscale.train.update import update_critic, update_policy
from turnscale.train.warmup import load_probe, open_base


class Stop:
    """Whether the process was asked to stop."""

    requested = False


@dataclass(frozen=True)
class Around:
    """What a run takes from its process, which may be shared with other runs.

    Attributes:
        checkpoint: the starting checkpoint, over whose weights this run alone puts adapters; None opens it.
        decoder: makes a decoder of the policy as it is now.
        stop: set when the process was asked to stop; None handles the signals for this run alone.
        cpu_seconds: CPU seconds used for this run so far.
    """

    checkpoint: Checkpoint | None = None
    decoder: Callable[[PeftModel, str], Decoder] = make_decoder
    stop: Stop | None = None
    cpu_seconds: Callable[[], float] = time.process_time


class Trainer:
    """The state of one run between steps.

    Attributes:
        step: finished steps.
        lost: episodes of training and validation that the environment broke, by reason.
        cursor: prompts taken from the epochs' permutations so far, where a step takes no fixed number of them.
        metrics: rows (step, name, value) so far.
        critic_rows: rows of ``CRITIC`` so far.
    """

    def __init__(
        self,
        run: Run,
        base_record: Mapping[str, Any],
        panels: Panels,
        critic_record: Mapping[str, Any] | None,
        around: Around | None = None,
    ) -> None:
        spec = run.spec.value
        self.around = around or Around()
        self.run = run
        self.seed = run.seed
        self.settings = Training.model_validate(spec["training"])
        self.method = method_of(spec["method"], run.method)
        self.family: Family = load_family(FamilyConfig.model_validate(spec["base"]["family"]))
        self.panels = panels
        self.tasks = panels.split("train")
        checkpoint = self.around.checkpoint or open_base(spec["base"], base_record, self.family)
        heads = self.method.critic.outputs
        self.agent: Agent = attach(checkpoint, stream_seed(self.seed, "adapter"), value_heads=heads)
        self.policy_optimiser = self._optimiser(policy_parameters(self.agent), self.settings.lr)
        self.critic_optimiser: torch.optim.Optimizer | None = None
        self.probe: TurnBatch | None = None
        self.shuffled: TurnBatch | None = None
        if heads:
            if critic_record is None:
                raise ValueError(f"method {self.method.name} needs the record of a warmed-up critic")
            if self.method.critic.warmup:
                load_adapter(self.agent, Path(critic_record["adapter"]), which="critic")
            self.probe, self.shuffled = load_probe(Path(critic_record["probe"]))
            self.critic_optimiser = self._optimiser(critic_parameters(self.agent), self.settings.critic_lr)
        choice = self.method.critic.twins
        self.twins = None if choice is None else TwinCritics(self.agent, choice)
        self.step = 0
        self.cursor = 0
        self.metrics: list[list[Any]] = []
        self.critic_rows: list[list[Any]] = []
        self.lost: Counter[str] = Counter()
        self.sent = 0
        self.last_batch: TurnBatch | None = None

    def _optimiser(self, parameters: list[Any], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters,
            lr=lr,
            betas=(self.settings.beta1, self.settings.beta2),
            weight_decay=self.settings.weight_decay,
        )

    # One step.

    def advance(self) -> None:
        """One step: rollout, credit, update of policy and critic, and every so often validation and probes."""
        if self.step == 0:
            self._validate(0)
            self._read_probe(0, None)
        started = time.monotonic()
        rate = self._decay()
        for optimiser, lr in (
            (self.policy_optimiser, self.settings.lr),
            (self.critic_optimiser, self.settings.critic_lr),
        ):
            for group in optimiser.param_groups if optimiser is not None else ():
                group["lr"] = lr * rate
        rollouts = self.sample()
        batch = self._read(rollouts.batch)
        if self.method.needs_teacher:
            batch = batch.with_(logp_teacher=self._teacher(rollouts))
        self.last_batch = batch
        require_finite_batch(batch)
        credit = self.method.credit(batch)
        advantages = self.method.normalise(credit.advantages, batch)
        require_finite("advantage", advantages)
        require_finite("critic targets", credit.returns)
        found: dict[str, float] = {**describe(rollouts, batch, advantages), **credit.metrics}
        old_logp = batch.logp_rollout
        if self.settings.old_logp == "trainer":
            with torch.no_grad():
                old_logp = self._logp(batch, "policy")
        found |= update_policy(
            self.agent,
            self.method,
            batch,
            advantages,
            old_logp,
            self.policy_optimiser,
            self.settings,
            torch_stream(self.seed, "minibatches", self.step),
        )
        if self.critic_optimiser is not None and batch.values is not None:
            found |= explained_variance(batch.values, batch)
            stream = torch_stream(self.seed, "critic minibatches", self.step)
            if self.twins is not None:
                found |= self.twins.update(self.method, batch, self.critic_optimiser, self.settings, stream)
            else:
                found |= update_critic(
                    self.agent, self.method, batch, credit, self.critic_optimiser, self.settings, stream
                )
        found["lr"] = self.settings.lr * rate
        elapsed = time.monotonic() - started
        self.step += 1
        self._log(self.step, {name: value for name, value in found.items() if name != "row_tokens"})
        self._log(
            self.step, {"row_tokens_per_second": rollouts.row_tokens / elapsed, "step_seconds": elapsed}
        )
        if self.step % self.settings.validate_every == 0 or self.step == self.settings.steps:
            self._validate(self.step)
        self._read_probe(self.step, batch)

    def sample(self) -> Rollouts:
        """The step's rollouts, drawn as the method's sampling scheme says."""
        scheme = SCHEMES[self.method.sampling.scheme]
        source = Source(
            play=self._play,
            task_at=self._task_at,
            entropy=self._entropy,
            rng=numpy_stream(self.seed, "forks", self.step),
            sampling=self.method.sampling,
            prompts=self.settings.prompts,
            group_size=self.settings.group_size,
            max_turns=self.family.limits.max_turns,
            step=self.step,
            cursor=self.cursor,
        )
        rollouts, self.cursor = scheme(source)
        self.lost.update(rollouts.failures)
        return rollouts

    def _play(
        self,
        chosen: Sequence[int],
        groups: Sequence[int],
        draw: int = 0,
        prefixes: Sequence[Prefix] | None = None,
        keep_prefixes: bool = False,
    ) -> Rollouts:
        """Rollouts of train tasks ``chosen``, from streams of this step and, after its first draw, of the draw."""
        names = (self.step, draw) if draw else (self.step,)
        tasks = [self.tasks[i] for i in chosen]
        told_before = contexts(self.family, tasks, self.method.sampling.context)
        return rollout(
            self.around.decoder(self.agent.model, "policy"),
            self.agent.chat,
            self.family.make,
            tasks,
            [stream_seed(self.seed, "environment", *names, row) for row in range(len(chosen))],
            self.family.limits,
            torch_stream(self.seed, "sampler", *names, device=self._device()),
            temperature=self.settings.temperature,
            task_index=chosen,
            group=groups,
            contexts=None if prefixes is not None else told_before,
            prefixes=prefixes,
            keep_prefixes=keep_prefixes,
        )

    def _task_at(self, position: int) -> int:
        epoch, offset = divmod(position, len(self.tasks))
        order = numpy_stream(self.seed, "task order", epoch).permutation(len(self.tasks))
        return int(order[offset])

    def _read(self, batch: TurnBatch) -> TurnBatch:
        """Values and reference log-probabilities the method needs, read before any update of the step."""
        with torch.no_grad():
            if self.agent.head is not None:
                batch = self._valued(batch)
            if self.method.needs_reference:
                batch = batch.with_(logp_ref=self._logp(batch, None))
        return batch

    def _valued(self, batch: TurnBatch) -> TurnBatch:
        if self.twins is not None:
            return self.twins.valued(batch, self.settings.micro_batch)
        parts = [
            read_heads(self.agent, batch.rows(rows, trim=False))
            for rows in torch.arange(batch.size).split(self.settings.micro_batch)
        ]
        return with_values(batch, torch.cat(parts, dim=1))

    def _logp(self, batch: TurnBatch, adapter: str | None) -> Tensor:
        return self._scores(batch, adapter)[0]

    def _entropy(self, batch: TurnBatch) -> Tensor:
        """[B, T] entropies of the policy at action tokens."""
        with torch.no_grad():
            return self._scores(batch, "policy")[1]

    def _scores(self, batch: TurnBatch, adapter: str | None) -> tuple[Tensor, Tensor]:
        """[B, T] log-probabilities and entropies at action tokens."""
        parts = [
            action_logprobs(
                self.agent.model, batch.rows(rows, trim=False), adapter, self.settings.temperature
            )
            for rows in torch.arange(batch.size).split(self.settings.micro_batch)
        ]
        return torch.cat([logp for logp, _ in parts]), torch.cat([entropy for _, entropy in parts])

    def _teacher(self, rollouts: Rollouts) -> Tensor:
        """[B, T] log-probabilities of the policy itself when it is told the task's skill text."""
        batch = rollouts.batch
        skills = [self.family.skill(self.tasks[i]) for i in batch.task.tolist()]
        prompts = [
            self.agent.chat.prompt_ids(told(skill, prompt))
            for skill, prompt in zip(skills, rollouts.prompts, strict=True)
        ]
        parts = [
            teacher_logprobs(
                self.agent.model,
                batch.rows(rows, trim=False),
                [prompts[i] for i in rows.tolist()],
                "policy",
                self.settings.temperature,
            )
            for rows in torch.arange(batch.size).split(self.settings.micro_batch)
        ]
        return torch.cat(parts)

    def _validate(self, step: int) -> None:
        outcomes = attempt(
            self._sampler(),
            "validation",
            self.panels.split("validation"),
            self.settings.validation_attempts,
            self.seed,
        )
        self._log(step, {"val_pass_at_1": float(outcomes["success"].mean())})

    def _read_probe(self, step: int, batch: TurnBatch | None) -> None:
        """Log critic values at evenly spaced steps, on the common rollouts and on the step's own.

        At step 0 also the values of a critic warmed up on shuffled rewards, on the common rollouts.
        """
        if self.probe is None or step not in self._probe_steps():
            return
        prompts = [task.hash for task in self.tasks]
        for name, rows in (("common", self.probe), ("probe", batch)):
            if rows is None:
                continue
            with torch.no_grad():
                part = self._valued(self._probed(rows))
            self.critic_rows += critic_rows(step, name, part, prompts)
        if step == 0 and self.shuffled is not None:
            self.critic_rows += critic_rows(0, "shuffled", self._probed(self.shuffled), prompts)

    def _probed(self, batch: TurnBatch) -> TurnBatch:
        return batch.rows(torch.arange(min(self.settings.probe_rollouts, batch.size)))

    def _probe_steps(self) -> set[int]:
        count = self.settings.probe_checkpoints
        return {0} | {round(self.settings.steps * (i + 1) / count) for i in range(count)}

    def _sampler(self) -> Sampler:
        return Sampler(
            lambda: self.around.decoder(self.agent.model, "policy"),
            self.agent.chat,
            self.family,
            self.settings.temperature,
            256,
            self.method.sampling.evaluation_context,
            self.lost,
        )

    def _decay(self) -> float:
        """Linear decay of the learning rates to ``lr_final`` of their start."""
        share = self.step / max(1, self.settings.steps - 1)
        return 1.0 - (1.0 - self.settings.lr_final) * share

    def _device(self) -> str:
        return str(next(iter(policy_parameters(self.agent))).device)

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        self.metrics += [[step, name, float(value)] for name, value in values.items()]

    # Keeping and sending.

    def send(self, log: RunLog) -> None:
        """Hand the metrics not yet handed over to the tracking log's buffer."""
        for step, name, value in self.metrics[self.sent :]:
            log.metrics(step, {name: value})
        self.sent = len(self.metrics)

    def _tensors(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {f"policy.{i}": p for i, p in enumerate(policy_parameters(self.agent))}
        if self.critic_optimiser is not None:
            named |= {f"critic.{i}": p for i, p in enumerate(critic_parameters(self.agent))}
        return named

    def snapshot(self) -> state.Snapshot:
        """Everything needed to go on from here."""
        tensors = {name: value.detach() for name, value in self._tensors().items()}
        tensors |= state.pack_optimiser(self.policy_optimiser, "policy_optimiser")
        if self.critic_optimiser is not None:
            tensors |= state.pack_optimiser(self.critic_optimiser, "critic_optimiser")
        if self.twins is not None:
            tensors |= self.twins.pack()
        rows = {"metrics": self.metrics, "critic": self.critic_rows}
        extra = {"seed": self.seed, "cursor": self.cursor, "lost": dict(self.lost)}
        return state.Snapshot(self.step, self.run.spec.hash, tensors, rows, extra)

    def resume(self, work: Path, log: RunLog) -> None:
        """Go on from the newest sound checkpoint in ``work``, if there is one."""
        found = state.load_newest(work, self.run.spec.hash, self._device())
        if found is None:
            return
        with torch.no_grad():
            for name, value in self._tensors().items():
                value.copy_(found.tensors[name])
        state.unpack_optimiser(self.policy_optimiser, "policy_optimiser", found.tensors)
        if self.critic_optimiser is not None:
            state.unpack_optimiser(self.critic_optimiser, "critic_optimiser", found.tensors)
        if self.twins is not None:
            self.twins.unpack(found.tensors)
        self.step = found.step
        self.cursor = int(found.extra.get("cursor", 0))  # absent before schemes that read it existed
        self.lost.update(found.extra["lost"])
        self.metrics = found.rows.get("metrics", [])
        self.critic_rows = found.rows.get("critic", [])
        log.tag("resumed_at", self.step)

    def finish(self, log: RunLog, work: Path) -> dict[str, Any]:
        """Write the final adapter and tables, log them and close the run."""
        self.sent = 0
        self.send(log)
        with replacing_folder(work / "final") as out:
            save_adapter(self.agent, out / "adapter", which="policy")
            metrics = pd.DataFrame(self.metrics, columns=list(METRICS))
            write_parquet(metrics, out / "metrics.parquet")
            if self.critic_optimiser is not None:
                save_adapter(self.agent, out / "critic", which="critic")
                rows = pd.DataFrame(self.critic_rows, columns=list(CRITIC))
                write_parquet(rows, out / "critic_values.parquet")
        log.artifact(work / "final")
        cost = {
            "cpu_seconds": round(self.around.cpu_seconds(), 1),
            "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }
        lost = dict(sorted(self.lost.items()))
        log.tag("lost", json.dumps(lost))
        return log.finish({"adapter": "adapter", "steps": self.step, "lost": lost, **cost})


def method_of(resolved: Mapping[str, Any], name: str) -> Method:
    """The method of a run's specification, which holds its choices and none of its prose."""
    paper = {"arxiv": None, "read_via": "run specification", "status": "variant"}
    return Method.model_validate(
        {**resolved, "name": name, "title": name, "summary": "from a run's specification", "paper": paper}
    )
