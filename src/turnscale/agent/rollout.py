"""Batched multi-turn rollouts that record exactly the tokens and log-probabilities the policy produced.

Streaming layout: every row consumes one token per decode step, sampled or forced (the rest of its prompt or of an
observation), so position p is cache slot p for all rows. When every unfinished row has n forced tokens pending they
are consumed as one chunk; when fewer than a share of the rows is unfinished the finished ones are dropped. Rows
whose tokens have been the same so far (the rollouts of one prompt, the branches of one prefix) are one line of the
decoder until they differ (:mod:`turnscale.agent.lines`).

The noise of (row, position) is drawn before decoding starts, so chunks, compaction and sharing cannot change what is
sampled, and a rollout always takes the same number of draws from the generator: B x max_tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turnscale.agent.chat import ChatFormat
from turnscale.agent.decode import Decoder
from turnscale.agent.episode import Episode, Prefix, told
from turnscale.agent.lines import Lines
from turnscale.batch import TurnBatch
from turnscale.envs.guard import GuardedEnvironment
from turnscale.envs.protocol import Environment, Limits, Task
from turnscale.errors import TaskError
from turnscale.finite import require_finite

WIDER = "lower the learning rate or use a wider dtype."


@dataclass(frozen=True)
class Rollouts:
    """A batch and what is not a tensor about it.

    Attributes:
        batch: the TurnBatch, on the CPU.
        prompts: [B] prompt texts.
        turns: [B] lists of turn texts, without end tokens; an unfinished last turn is included.
        observations: as many per row as turns; "" where the episode ended with the turn.
        n_turns: [B] number of turns begun.
        n_action_tokens: [B] number of sampled tokens.
        n_invalid: [B] number of turns the environment found malformed.
        failures: how often the environment itself broke down, by reason; those episodes ended with reward 0.
        row_tokens: tokens consumed by unfinished rows, prompts and observations included.
        fed_tokens: tokens the decoder computed: fewer than ``row_tokens`` where rows were one line of it.
        consumed: episodes played to get these rows, dropped ones included.
        solved: successful episodes among them.
        env_calls: turns played by environments for them; a shared prefix counts once.
        sampled_tokens: tokens sampled for them; those of a shared prefix count once.
        prefixes: [B] a prefix for each turn begun, where they were asked for (``keep_prefixes``).
    """

    batch: TurnBatch
    prompts: list[str]
    turns: list[list[str]]
    observations: list[list[str]]
    n_turns: Tensor
    n_action_tokens: Tensor
    n_invalid: Tensor
    failures: Counter[str]
    row_tokens: int
    fed_tokens: int
    consumed: int
    solved: int
    env_calls: int
    sampled_tokens: int
    prefixes: list[list[Prefix]] = field(default_factory=list)


def sample(logits: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw one token per row from softmax(logits / temperature) by inverting its distribution function.

    Args:
        logits: [n, V] float32.
        noise: [n] float64, uniform on [0, 1).
        temperature: > 0, or 0 for the most likely token.

    Returns:
        tokens [n] long and their log-probabilities [n] float32 under the distribution drawn from (at temperature
        0, which is not one, under softmax(logits)). The whole softmax is used: truncated supports (top-p, top-k)
        would bias importance ratios and are not offered.

    Raises NumericalError on logits that are not finite.
    """
    wide = logits.double()
    if temperature not in (0, 1):
        wide = wide / temperature
    wide = wide - wide.amax(-1, keepdim=True)
    levels = wide.exp().cumsum(-1)
    total = levels[:, -1:]
    if not bool(torch.isfinite(total.sum())):
        require_finite("logits", logits, WIDER)
    if temperature == 0:
        tokens = logits.argmax(-1, keepdim=True)
    else:
        tokens = torch.searchsorted(levels, noise[:, None] * total, right=True)
        tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    logp = wide.gather(-1, tokens) - total.log()
    return tokens.squeeze(-1), logp.squeeze(-1).float()


def rollout(
    decoder: Decoder,
    chat: ChatFormat,
    make_env: Callable[[], Environment],
    tasks: Sequence[Task],
    seeds: Sequence[int],
    limits: Limits,
    generator: torch.Generator,
    *,
    temperature: float = 1.0,
    task_index: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
    contexts: Sequence[str] | None = None,
    prefixes: Sequence[Prefix] | None = None,
    keep_prefixes: bool = False,
    compaction: float = 0.8,
    share: bool = True,
) -> Rollouts:
    """Play one episode per (task, seed) pair, all rows together.

    A turn that reaches ``limits.max_turn_tokens`` without its end token is closed by a forced end token (mask 0)
    and played as incomplete. An episode that needs more than ``limits.max_turns`` turns, or a row that would need
    more than ``limits.max_tokens`` tokens (prompt, turns and observations together), ends truncated with reward 0.

    Args:
        decoder: a fresh decoder of the policy.
        make_env: called once per row; the environments are guarded, so one that raises, or hangs for longer than
            ``limits.timeout_s``, loses its episode only, which is counted in ``failures``.
        generator: the only source of randomness.
        task_index: [B] position of each task in its panel; by default tasks are numbered as they appear.
        group: [B] group identities; by default rows of one task form a group.
        contexts: [B] texts the policy is told before the prompt. They do not count against ``limits.max_tokens``.
        prefixes: [B] where each row goes on, instead of beginning anew; its tokens and log-probabilities are taken
            over as they are, its environment is cloned. Excludes ``contexts``, which are in the prefix already.
        keep_prefixes: keep a prefix for each turn begun, which clones the environment as often. Whoever asks for
            them closes their environments.
        compaction: finished rows are dropped when the share of unfinished rows falls below this; 0 keeps them.
            It must stay fixed within a run: another batch shape can change the last bits of a log-probability.
        share: feed rows once whose tokens are the same so far; otherwise every row has its own line throughout.

    Raises TaskError when a prompt does not fit, NumericalError on non-finite logits.
    """
    if len(tasks) != len(seeds) or not tasks:
        raise TaskError(
            f"got {len(tasks)} tasks and {len(seeds)} seeds", remedy="give one seed per task, at least one"
        )
    size = len(tasks)
    starts: Sequence[Prefix | None] = [None] * size if prefixes is None else prefixes
    failures: Counter[str] = Counter()
    rows = [
        Episode(GuardedEnvironment(make_env(), failures, limits.timeout_s), task, seed, limits, prefix)
        for task, seed, prefix in zip(tasks, seeds, starts, strict=True)
    ]
    prompts = [chat.prompt_ids(row.prompt) for row in rows]
    if contexts is not None:
        plain = prompts
        prompts = [chat.prompt_ids(told(text, row.prompt)) for text, row in zip(contexts, rows, strict=True)]
        for row, short, long in zip(rows, plain, prompts, strict=True):
            row.budget += len(long) - len(short)
    width = max(row.budget for row in rows)
    noise = torch.rand(width, size, generator=generator, device=generator.device, dtype=torch.float64)
    noise = noise.to(decoder.device)

    ids = np.zeros((size, width), dtype=np.int64)  # pad id 0 is never read: lengths say where rows end
    mask = np.zeros((size, width), dtype=bool)
    turn = np.full((size, width), -1, dtype=np.int64)
    logp = np.zeros((size, width), dtype=np.float32)
    known = np.zeros(size, dtype=np.int64)  # tokens of each row that are decided, fed or not
    spent = np.zeros(size, dtype=np.int64)  # tokens sampled in the current turn
    begun = np.zeros(size, dtype=np.int64)  # turns before the current one
    alive = np.ones(size, dtype=bool)
    for index, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        if prefixes is not None:
            shared = prefixes[index]
            start = len(shared.ids)
            ids[index, :start], mask[index, :start] = shared.ids, shared.mask
            turn[index, :start], logp[index, :start] = shared.turn, shared.logp
            known[index], begun[index] = start, len(shared.turns)
            continue
        if len(prompt) >= row.budget:
            raise TaskError(
                f"the prompt has {len(prompt)} tokens and the episode may have {row.budget}",
                key="limits.max_tokens",
                remedy="raise the token budget of the family",
            )
        ids[index, : len(prompt)] = prompt
        known[index] = len(prompt)
    inherited = int(mask.sum())

    def begin(index: int) -> None:
        """Keep the prefix of the turn that the row begins now."""
        if keep_prefixes:
            here = slice(int(known[index]))
            rows[index].keep(ids[index, here], mask[index, here], turn[index, here], logp[index, here])

    for index in range(size):
        begin(index)

    def close(index: int, complete: bool) -> None:
        """Play the finished turn of a row and append what the policy sees next."""
        row, count = rows[index], int(spent[index])
        end = int(known[index])
        spoken = ids[index, end - count : end - 1 if complete else end]
        spent[index] = 0
        begun[index] += 1
        if not complete and end < row.budget:
            ids[index, end] = chat.end_id
            known[index] += 1
        observation = row.act(chat.decode_turn(spoken.tolist()), complete)
        if observation is None:
            alive[index] = False
            return
        added = chat.observation_ids(observation)
        start = int(known[index])
        if start + len(added) >= row.budget:  # no room for the observation and one more action token
            row.truncated = True
            row.observations[-1] = ""
            alive[index] = False
            return
        ids[index, start : start + len(added)] = added
        known[index] += len(added)
        begin(index)

    budget = np.array([row.budget for row in rows])
    decoder.start(size, width)
    lines = Lines(size, compaction, share)
    position, row_tokens, fed_tokens = 0, 0, 0
    while alive.any():
        active = np.flatnonzero(alive)
        chunk = int(known[active].min()) - position
        coming = ids[:, position : position + chunk]
        kept = lines.arrange(active, coming)
        if kept is not None and position:
            decoder.compact(torch.from_numpy(kept).to(decoder.device))
        logits = decoder.step(torch.from_numpy(coming[lines.leader]).to(decoder.device))
        position += chunk
        row_tokens += chunk * len(active)
        fed_tokens += chunk * len(lines.leader)
        due = active[known[active] == position]
        drawn, drawn_logp = sample(
            logits[torch.from_numpy(lines.line[due]).to(decoder.device)],
            noise[position, torch.from_numpy(due).to(decoder.device)],
            temperature,
        )
        choice = drawn.cpu().numpy()
        ids[due, position] = choice
        mask[due, position] = True
        turn[due, position] = begun[due]
        logp[due, position] = drawn_logp.cpu().numpy()
        known[due] += 1
        spent[due] += 1
        ended = choice == chat.end_id
        overlong = spent[due] >= limits.max_turn_tokens
        for index in due[ended | overlong]:
            close(int(index), complete=bool(ids[index, position] == chat.end_id))
        for index in due[~ended & ~overlong & (known[due] >= budget[due])]:
            row, end = rows[index], int(known[index])
            row.turns.append(chat.decode_turn(ids[index, end - int(spent[index]) : end].tolist()))
            row.observations.append("")
            row.truncated = True
            alive[index] = False
    for row in rows:
        row.env.close()

    longest = int(known.max())
    actions = torch.from_numpy(mask[:, :longest].copy())
    turns = torch.from_numpy(turn[:, :longest].copy())
    anchors = [
        np.where(mask[i, :longest], np.array(row.anchors)[turn[i, :longest]], -1)
        for i, row in enumerate(rows)
    ]
    indices = list(task_index) if task_index is not None else _numbered([task.hash for task in tasks])
    batch = TurnBatch(
        ids=torch.from_numpy(ids[:, :longest].copy()),
        action_mask=actions,
        turn=turns,
        logp_rollout=torch.from_numpy(logp[:, :longest].copy()),
        length=torch.from_numpy(known),
        reward=torch.tensor([row.reward for row in rows], dtype=torch.float32),
        success=torch.tensor([row.success for row in rows]),
        truncated=torch.tensor([row.truncated for row in rows]),
        task=torch.tensor(indices),
        group=torch.tensor(indices if group is None else list(group)),
        anchor=torch.from_numpy(np.stack(anchors)),
    )
    return Rollouts(
        batch=batch,
        prompts=[row.prompt for row in rows],
        turns=[row.turns for row in rows],
        observations=[row.observations for row in rows],
        n_turns=batch.turns_per_row(),
        n_action_tokens=actions.sum(1),
        n_invalid=torch.tensor([row.invalid for row in rows]),
        failures=failures,
        row_tokens=row_tokens,
        fed_tokens=fed_tokens,
        consumed=size,
        solved=sum(row.success for row in rows),
        env_calls=sum(row.calls for row in rows),
        sampled_tokens=int(mask.sum()) - inherited,
        prefixes=[row.prefixes for row in rows] if keep_prefixes else [],
    )


def _numbered(names: Sequence[str]) -> list[int]:
    order: dict[str, int] = {}
    return [order.setdefault(name, len(order)) for name in names]
