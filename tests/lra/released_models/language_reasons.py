"""Why some settings of released language models are no option of ours, by repository."""

ELSEWHERE = {
    "adaptive_span": {
        **dict.fromkeys(
            ("adapt_io_cutoffs", "adapt_io_divval", "adapt_io_tied"), "read with adapt_io alone"
        ),
        "adapt_span_cache": "memory is as long as the longest span: changes no number",
        "batch_split": "changes no number",
        **dict.fromkeys(
            ("checkpoint", "data", "data_unit", "distributed", "full_eval_mode", "local_rank"),
            "the task's, of the run or of the machine",
        ),
    },
    "awd_lstm": dict.fromkeys(
        ("cuda", "data", "log_interval", "resume", "save", "seed"),
        "the task's, of the run or of the machine",
    ),
    "transformer_xl": {
        **dict.fromkeys(
            ("decay_rate", "lr_min", "patience"), "read for another schedule: `dev_perf`"
        ),
        **dict.fromkeys(("emb_init", "emb_init_range", "finetune_v2", "finetune_v3"),
                        "read nowhere"),
        "init_range": "read with init=uniform alone",
        "mom": "of another optimiser",
        **dict.fromkeys(("dynamic_loss_scale", "static_loss_scale"), "read with fp16 alone"),
        "batch_chunk": "changes no number",
        "max_eval_steps": "of a shorter validation, which none asks for",
        **dict.fromkeys(
            ("cuda", "data", "dataset", "debug", "gpu0_bsz", "log_interval", "multi_gpu", "no_log",
             "restart", "restart_dir", "seed", "work_dir"),
            "the task's, of the run or of the machine",
        ),
    },
    "fairseq": {
        "t_mult": "of a second cycle, which training ends before",
        "lr_shrink": "of a second cycle, which training ends before",
        "stop_min_lr": "ends training at a rate that the schedule does not reach",
        "relu_dropout": "read where activation_dropout is 0",
        **dict.fromkeys(
            ("base_shuffle", "base_sublayers", "char_embedder_highway_layers",
             "character_embedding_dim", "character_filters", "quant_noise_pq_block_size",
             "shorten_data_split_list", "min_params_to_wrap"), "read with what is switched off",
        ),
        **dict.fromkeys(
            ("checkpoint_activations", "offload_activations", "data_buffer_size", "dataset_impl",
             "required_batch_size_multiple", "required_seq_len_multiple", "num_workers",
             "grouped_shuffling", "update_epoch_batch_itr", "update_ordered_indices_seed",
             "use_plasma_view", "plasma_path"), "changes no number, or the order of batches",
        ),
        **dict.fromkeys(
            ("amp_batch_retries", "amp_init_scale", "amp_scale_window", "fp16_init_scale",
             "fp16_no_flatten_grads", "fp16_scale_tolerance", "fp16_scale_window",
             "min_loss_scale", "threshold_loss_scale", "on_cpu_convert_precision"),
            "of float16",
        ),
        **dict.fromkeys(("max_tokens_valid", "batch_size", "batch_size_valid", "max_sentences",
                         "max_sentences_valid", "combine_valid_subsets", "fixed_validation_seed",
                         "ignore_unused_valid_subsets", "skip_invalid_size_inputs_valid_test"),
                        "of the batches of validation, or not set"),
        **dict.fromkeys(("sliding_inf", "max_tokens"), "of a second evaluation, token by token"),
        **dict.fromkeys(
            ("aim_repo", "aim_run_hash", "all_gather_list_size", "arch", "azureml_logging",
             "checkpoint_shard_count", "checkpoint_suffix", "continue_once", "cpu", "data",
             "ddp_backend", "empty_cache_freq", "gen_subset", "keep_best_checkpoints",
             "keep_interval_updates", "keep_interval_updates_pattern", "keep_last_epochs",
             "load_checkpoint_on_all_dp_ranks", "log_file", "log_format", "log_interval",
             "model_parallel_size", "no_epoch_checkpoints", "no_last_checkpoints",
             "no_progress_bar", "no_save", "no_save_optimizer_state", "num_shards", "path",
             "profile", "quantization_config_path", "reset_dataloader", "reset_logging",
             "reset_meters", "restore_file", "save_dir", "save_interval",
             "save_interval_updates", "seed", "shard_id", "suppress_crashes", "task",
             "tensorboard_logdir", "tpu", "train_subset", "user_dir", "valid_subset",
             "wandb_project", "write_checkpoints_asynchronously"),
            "the task's, of the run or of the machine",
        ),
    },
    "reformer": {
        **dict.fromkeys(
            ("attn_kv", "ReformerLM.d_ff", "ReformerLM.d_model", "ReformerLM.d_attention_key",
             "ReformerLM.d_attention_value", "ReformerLM.pos_d_axial_embs"),
            "of less memory: the sizes of the paper are those that comments name",
        ),
        **dict.fromkeys(("attn_type", "dropout", "n_layers"), "handed to ReformerLM"),
        **dict.fromkeys(
            (f"{kind}.{key}" for kind in ("SelfAttention", "LSHSelfAttention")
             for key in ("causal", "d_qk", "d_v", "masked", "mode", "n_heads", "output_dropout")),
            "handed over by ReformerLM",
        ),
        "LSHSelfAttention.share_qk": "read nowhere: it always does",
        "LSHSelfAttention.max_length_for_buckets": "of a longer text than training has",
        "Adam.learning_rate": "the schedule's",
        "ReformerLM.pos_type": "later code reads axial positions with another value alone",
        "ReformerLM.loss_sparsity_type": "read with loss_sparsity alone",
        "ReformerLM.loss_sparsity_prob": "read with loss_sparsity alone",
        **dict.fromkeys(
            (f"multifactor.{key}" for key in
             ("decay_factor", "second_constant", "second_constant_step", "steps_per_cycle",
              "steps_per_decay")), "of other factors",
        ),
        **dict.fromkeys(
            ("ReformerLM.attention_chunk_size", "ReformerLM.ff_chunk_size", "ReformerLM.mode",
             "train.loss_chunk_size", "train.use_memory_efficient_trainer", "train.use_loop",
             *(f"{kind}.{key}" for kind in ("SelfAttention", "LSHSelfAttention")
               for key in ("n_parallel_heads", "predict_drop_len", "predict_mem_len",
                           "use_python_loop", "use_reference_code"))),
            "changes no number of training",
        ),
        **dict.fromkeys(
            (f"batcher.{key}" for key in
             ("batch_shuffle_size", "batch_size", "bucket_length", "buckets",
              "buckets_include_inputs_in_length", "data_streams", "id_to_mask",
              "strict_pad_on_len", "variable_shapes")), "of texts of several lengths, or not set",
        ),
        **dict.fromkeys(
            ("data_streams.data_dir", "data_streams.input_name",
             *(f"train.{key}" for key in
               ("additional_eval_streams", "additional_eval_tasks", "callbacks", "checkpoints_at",
                "eval_frequency", "eval_steps", "inputs", "lr_schedule_fn", "metrics", "model",
                "permanent_checkpoint_frequency", "permanent_checkpoints_at", "random_seed",
                "save_graphs", "trainer_class"))),
            "the task's, of the run or of its log",
        ),
    },
}  # fmt: skip
