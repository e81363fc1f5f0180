"""TRL's side of ``step_trl.py``: GRPOTrainer as its users run it, stopped before each step until it is its turn.

Several turns are played by TRL's own loop over an ``environment_factory``: every turn is parsed as a call of the
environment's one tool, whose result is rendered by the chat template and appended.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from step_setting import (
    ADAPTER,
    BASE,
    BATCH,
    CLIP_NORM,
    LR,
    Setting,
    prompt_texts,
    reward,
    setting_of,
    some_words,
)
from workers import Orders, clock, memory

from turnscale.methods import load_method

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
warnings.filterwarnings("ignore")

# The tokens of turnscale's own format: <user> prompt <assistant> turn <end> <user> observation <assistant> turn ...
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant> {{ message['content'] }} "
    "{% for call in message.get('tool_calls') or [] %}{{ call['function']['name'] }} "
    "{% for key, value in call['function']['arguments'].items() %}{{ key }} {{ value }} {% endfor %}"
    "{% endfor %}"
    "{% elif message['role'] == 'tool' %}<end> <user> {{ message['content'] }} "
    "{% else %}<user> {{ message['content'] }} {% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "content": "text",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "act", "arguments": {"text": "{content}"}},
            },
        }
    },
}


def environment(setting: Setting) -> type:
    """The scripted environment as TRL wants it: a class whose public methods are tools."""

    class Scripted:
        """Answers each turn with random words."""

        def reset(self, **_: Any) -> None:
            """Begin an episode."""
            self._rng = random.Random(0)

        def act(self, text: str) -> str:
            """
            Act with a turn.

            Args:
                text: The turn.

            Returns:
                What is seen next.
            """
            return some_words(self._rng, setting.observation_words)

    return Scripted


class Theirs:
    """The commands ``score``, ``step`` and ``memory``."""

    def __init__(self, folder: Path, setting: Setting, method: str) -> None:
        self.folder, self.setting = folder, setting
        torch.set_num_threads(1)
        from datasets import Dataset
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        clip = load_method(method).section("clip")
        tokenizer = AutoTokenizer.from_pretrained(folder / BASE)
        tokenizer.chat_template = TEMPLATE
        base = AutoModelForCausalLM.from_pretrained(folder / BASE, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, folder / ADAPTER, is_trainable=True)
        several = setting.turns > 1
        if several:
            tokenizer.response_template = RESPONSE
        options = GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=setting.rows,
            num_generations=setting.group,
            max_completion_length=setting.completion,
            generation_kwargs={"max_new_tokens": setting.turn_tokens},
            max_tool_calling_iterations=setting.turns - 1 if several else None,
            importance_sampling_level="sequence" if method == "gspo" else "token",
            loss_type="grpo",
            epsilon=clip["low"],
            epsilon_high=clip["high"],
            beta=0.0,
            learning_rate=LR,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=CLIP_NORM,
            max_steps=10_000,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,  # TRL's default costs a second forward pass
            shuffle_dataset=False,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        rows = [{"prompt": [{"role": "user", "content": text}]} for text in prompt_texts(setting)]
        self.trainer: Any = GRPOTrainer(
            model=model,
            reward_funcs=turn_reward(several),
            args=options,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=environment(setting) if several else None,
        )
        self.baseline = memory()["resident"]

    def score(self) -> dict[str, float]:
        """As turnscale's side does, by the trainer's own methods; observations are masked as results of tools."""
        given = load_file(self.folder / BATCH)
        trainer, mask = self.trainer, given["mask"]
        trainer.current_gradient_accumulation_steps = 1
        start = int(mask.long().argmax(1)[0])  # all prompts are of one length
        ids = given["ids"]
        real = (torch.arange(ids.shape[1]) < given["length"][:, None]).long()
        inputs = {
            "prompt_ids": ids[:, :start],
            "prompt_mask": real[:, :start],
            "completion_ids": ids[:, start:],
            "completion_mask": real[:, start:],
            "tool_mask": mask[:, start:].long(),
            "advantages": given["advantage"],
            "old_per_token_logps": given["old"][:, start:],
            "num_items_in_batch": mask.sum(),
        }
        trainer.model.train()
        with torch.no_grad():
            logp, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, real, ids.shape[1] - start
            )
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        found = {"logp": logp[mask[:, start:]], "loss": loss.detach()[None]}
        for name, parameter in trainer.model.named_parameters():
            if parameter.grad is not None:
                found["grad " + name.replace(".default.", ".")] = parameter.grad.clone()
                parameter.grad = None
        save_file(found, self.folder / "theirs.safetensors")
        return {"loss": float(loss.detach())}

    def memory(self) -> dict[str, float]:
        """Peak, and how much of it came on top of imports and weights."""
        peak = memory()["peak"]
        return {"peak": peak, "above": peak - self.baseline}

    def run(self, orders: Orders) -> None:
        """Train; each step waits for the command ``step``, and other commands are answered in between."""
        from transformers import TrainerCallback

        side, counted = self, {"tokens": 0, "reward": 0.0}
        generate = self.trainer._generate_and_score_completions

        def counting(inputs: Any) -> Any:
            out = generate(inputs)
            counted["tokens"] = int(out["prompt_mask"].sum() + out["completion_mask"].sum())
            counted["reward"] = self.trainer._metrics["train"]["reward"][-1]
            counted["parted"] = clock()[0]
            return out

        self.trainer._generate_and_score_completions = counting

        class TakeTurns(TrainerCallback):
            """Waits before a step and reports after it."""

            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
                while (order := orders.next()) is not None and order["command"] != "step":
                    orders.reply(getattr(side, order["command"])())
                if order is None:
                    raise SystemExit(0)
                self.start = clock()
                return control

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
                end = clock()
                orders.reply(
                    {
                        "cpu": end[0] - self.start[0],
                        "wall": end[1] - self.start[1],
                        "rollout_cpu": counted["parted"] - self.start[0],
                        "row_tokens": counted["tokens"],
                        "reward": counted["reward"],
                    }
                )
                return control

        self.trainer.add_callback(TakeTurns())
        self.trainer.train()


def turn_reward(several: bool) -> Any:
    """The reward of a conversation's turns, as TRL calls it."""

    def turns(completion: list[dict[str, Any]]) -> list[str]:
        if not several:
            return [completion[0]["content"]]
        calls = [message["tool_calls"][0] for message in completion if "tool_calls" in message]
        return [call["function"]["arguments"]["text"] for call in calls]

    def share_of_distinct_words(completions: list[Any], **_: Any) -> list[float]:
        return [reward(turns(completion)) for completion in completions]

    return share_of_distinct_words


def main() -> None:
    """Arguments: scratch folder, workload, width, method."""
    folder, workload, hidden, method = sys.argv[1:]
    orders = Orders()
    Theirs(Path(folder), setting_of(workload, int(hidden)), method).run(orders)


if __name__ == "__main__":
    main()
