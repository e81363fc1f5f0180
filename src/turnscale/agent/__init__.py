"""Checkpoints, chat transcripts, LoRA adapters, the critic head and the token-exact batched rollout.

The interface the training loop uses (each name is importable from its module)::

    checkpoint.load(source: ModelConfig | str | Path) -> Checkpoint
        Checkpoint(model, tokenizer, chat, hash, config); one path for local, pretrained and GGUF kinds.
    checkpoint.make_local(config: ModelConfig, vocabulary: Sequence[str], seed: int) -> (model, tokenizer)
    checkpoint.save(model, tokenizer, config: ModelConfig, directory) -> None
    checkpoint.load_config(path) -> ModelConfig

    adapter.attach(checkpoint: Checkpoint, seed: int, value_heads: int = 1) -> Agent
        Agent(model: PeftModel, head: ValueHead | None, chat, base_hash); value_heads=0 means no critic.
    adapter.policy_parameters(agent) -> list[Parameter]     trainable, fp32
    adapter.critic_parameters(agent) -> list[Parameter]     the critic's adapter and the value head
    adapter.save_adapter(agent, directory, which="policy")  peft format (+ value_head.safetensors for "critic")
    adapter.load_adapter(agent, directory, which="policy")  into the attached adapter, in place
    adapter.merged_weights(model, adapter) -> dict[str, Tensor]   fresh tensors, the base is never touched

    decode.make_decoder(model, adapter: str | None = "policy", kind="auto") -> Decoder
        Kinds: auto, compiled, fused, hf, hf-merged.
        Cheap: call it after every optimiser step. adapter=None decodes the frozen base.

    rollout.rollout(decoder, chat, make_env, tasks, seeds, limits, generator, *, temperature=1.0,
                    task_index=None, group=None, contexts=None, prefixes=None, keep_prefixes=False,
                    compaction=0.8, share=True) -> Rollouts
        Rollouts(batch: TurnBatch, prompts, turns, observations, n_turns, n_action_tokens, n_invalid, failures,
                 row_tokens, fed_tokens, consumed, solved, env_calls, sampled_tokens, prefixes)

    forward.action_logprobs(model, batch, adapter="policy", temperature=1.0) -> (logp [B, T], entropy [B, T])
    forward.critic_values(model, head, batch) -> [B, T], or [heads, B, T] for a head with several outputs
    privileged.teacher_logprobs(model, batch, prompts: list[list[int]], adapter="policy") -> [B, T]

Devices and dtypes come from the ModelConfig. Nothing here draws from a global random generator.
"""
