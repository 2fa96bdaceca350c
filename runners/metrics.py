"""The metric table: every name that a row may carry, its unit and its exact meaning. Torch-free."""

from dataclasses import dataclass
from sys import float_info


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The unit, direction and meaning of one metric."""

    unit: str
    higher_is_better: bool | None
    """None if neither direction is better, for example for a count."""
    meaning: str
    least: float
    most: float
    """Range of a stored number, bounds included; no measurement lies beyond."""


_RANGES = {
    "fraction": (0.0, 1.0 + 1e-6),
    "s": (1e-12, 1e12),
    "ratio": (1e-12, 1e12),
    "nat": (-1e39, 1e39),
    "bit": (-1e39, 1e39),
    "token": (0.0, 1e15),
    "1": (0.0, float_info.max),
}
"""By unit. A mean of fractions may round to above 1. Times and ratios are above 0, because reports
divide by them; losses may be huge."""
_COUNTED = (0.0, 1e30)
"""For bytes, operations and rates."""


def _metric(
    unit: str,
    better: bool | None,
    meaning: str,
    *,
    least: float | None = None,
    most: float | None = None,
) -> Metric:
    low, high = _RANGES.get(unit, _COUNTED)
    return Metric(
        unit=unit,
        higher_is_better=better,
        meaning=meaning,
        least=low if least is None else least,
        most=high if most is None else most,
    )


COUNTED = frozenset({
    "flops", "saved_bytes", "parameters", "state_bytes", "batch_size", "peak_tensor_bytes",
    "prefill_peak_tensor_bytes", "reference_peak_tensor_bytes", "peak_tensor_bytes_ratio",
})  # fmt: skip
"""Metrics that do not depend on time."""
JUDGED_BY = ("bits_per_byte", "bits_per_character", "word_perplexity", "perplexity", "accuracy")
"""A run, a comparison and a model are judged by the first of these metrics that they have."""
METRICS: dict[str, Metric] = {
    # quality
    "accuracy": _metric("fraction", True, "fraction of examples answered correctly; label split"),
    "exact_match": _metric("fraction", True, "fraction of sequences with every token correct"),
    "loss": _metric("nat", False, "mean negative log-likelihood per item; label split"),
    "bits_per_character": _metric("bit", False, "loss / ln 2, an item being a character or byte"),
    "bits_per_byte": _metric("bit", False, "loss / ln 2 x tokens / bytes of the text"),
    "bits_per_token": _metric("bit", False, "loss / ln 2, an item being a token"),
    "perplexity": _metric("1", False, "exp(loss), an item being a token"),
    "word_perplexity": _metric("1", False, "exp(summed loss / words of the original text)"),
    "loss_by_position": _metric("nat", False, "mean loss of items at these positions of a window"),
    "loss_by_document_position": _metric("nat", False, "mean loss at these positions of documents"),
    "loss_by_frequency": _metric("nat", False, "mean loss of tokens by frequency in train"),
    "train_loss": _metric("nat", False, "mean training loss since the last row; has a step"),
    # what a trained model looks at
    "span": _metric("token", None, "how far a trained model reads; labels measure, layer, head"),
    "occlusion_agreement": _metric(
        "fraction", None,
        "fraction of answers unchanged if all beyond `within` is hidden",
    ),
    "attention_mass": _metric(
        "fraction", None,
        "attention weight that a region gets; labels region, bucket, layer",
    ),
    "attention_mass_error": _metric(
        "fraction", None,
        "standard error of attention_mass over sequences",
    ),
    "learned_span": _metric("token", None, "span that a head has learned; labels layer, head"),
    "span_flops": _metric("flop", False, "counted operations of a pass over a window; label spans"),
    "span_flops_per_token": _metric(
        "flop", False,
        "span_flops by the span of each head, per token; label spans",
    ),
    "attention_distance": _metric(
        "token", None,
        "mean of |q - j|, weighted by attention; labels layer, head",
    ),
    "attention_within": _metric("fraction", None, "weight up to `within` away; labels layer, head"),
    "attention_entropy": _metric(
        "nat", None,
        "mean entropy of a query's attention weights; labels layer, head", least=0.0,
    ),
    "attention_map": _metric("fraction", None, "weight in the query's square of the map; samples: "
                             "in every square; labels layer, row, positions (of a square)"),
    "singular_value_share": _metric("fraction", None, "sum of the largest quarter / of all; "
                                    "samples: of 1/64, 2/64, … of all; labels layer, head"),
    "projection_energy": _metric("fraction", None, "energy of W_Q W_K^T in a quarter of its "
                                 "dimensions; samples: in 1, 2, …; labels layer, head"),
    "kernel_weight": _metric(
        "fraction", None,
        "mean kernel weight of the current token; samples: of every position; labels layer, "
        "head, left",
    ),
    "kernel_deviation": _metric("fraction", None, "standard deviation of kernel_weight"),
    "attention_similarity": _metric(
        "1", None,
        "correlation over heads of the attention that two amino acids get; labels token, other, "
        "score", least=-1.0, most=1.0,
    ),
    "substitution_correlation": _metric(
        "1", True,
        "correlation of attention_similarity with BLOSUM62", least=-1.0, most=1.0,
    ),
    "keys_seen": _metric("token", None, "keys a query attends to; samples: of each key how many "
                         "share its weight, 0: hidden; labels layer, head, row, same"),
    "source_accuracy": _metric("fraction", True, "accuracy of the model whose weights were copied"),
    "source_loss": _metric("nat", False, "loss of the model whose weights were copied"),
    # a trained model made smaller; labels method, amount, stage
    "head_importance": _metric("1", None, "mean absolute d loss / d gate; labels layer, head"),
    "decomposition_error": _metric("ratio", False, "Frobenius norm of W - W~ / of W; label layer",
                                   least=0.0),
    "disk_bytes": _metric("B", False, "file of the weights; label storage: dense or without zeros"),
    "nonzero_parameters": _metric("1", None, "parameters that are not 0; 8-bit codes all count"),
    "compressed_time": _metric("s", False, "one forward pass, compressed; median of samples"),
    "whole_time": _metric("s", False, "one forward pass, uncompressed; interleaved"),
    "compressed_time_ratio": _metric("ratio", False, "compressed / uncompressed, paired samples"),
    # the training run
    "train_step_time": _metric("s", False, "wall clock of one optimiser step in training, median"),
    "data_wait": _metric("fraction", False, "fraction of training time spent waiting for batches",
                         most=1e12),
    "train_time": _metric("s", False, "wall-clock time of all training steps, evaluation excluded",
                          least=0.0),
    "examples_seen": _metric("1", None, "training examples used"),
    "tokens_seen": _metric("token", None, "tokens of the training windows of all stages"),
    "tokens_per_second_per_device": _metric("token/s", True, "tokens_per_second / processes"),
    "bytes_sent_per_step": _metric(
        "B", False,
        "counted bytes that one process sends; all_reduce of b bytes among n processes: 2 b (n "
        "- 1) / n",
    ),
    "bytes_sent_per_step_in_total": _metric(
        "B", False,
        "bytes that all processes together send in a step",
    ),
    "scaling_efficiency": _metric(
        "ratio", True,
        "efficiency of n processes, paired samples: weak t1 / tn, strong t1 / (n tn)", least=0.0,
    ),
    # of stored rows alone: no runner measures it any more
    "fitting_length": _metric("token", True, "longest sequence of which a training step fits into "
                              "the memory of its processes"),
    "initial_parameters": _metric("1", None, "parameters counted by source; label origin"),
    # cost at one length
    "time": _metric("s", False, "one forward pass or training step, by mode; median of samples"),
    "reference_time": _metric("s", False, "time of the reference, interleaved; label reference"),
    "time_ratio": _metric("ratio", False, "model / reference, paired samples; label reference"),
    "processor_time": _metric("s", False, "of the same passes as time: seconds of the processors "
                              "over threads, or of the measuring thread, if more; median"),
    "processor_time_ratio": _metric(
        "ratio", False,
        "processor_time of the model / of the reference, paired; label reference",
    ),
    "tokens_per_second": _metric("token/s", True, "tokens of a batch / median time; in training, "
                                 "mean"),
    "peak_tensor_bytes": _metric("B", False, "peak bytes of live tensors during one pass"),
    "reference_peak_tensor_bytes": _metric("B", False, "peak_tensor_bytes of the reference"),
    "peak_tensor_bytes_ratio": _metric("ratio", False, "model / reference; label reference",
                                       least=0.0),
    "saved_bytes": _metric("B", False, "bytes of activations that autograd saves for backward"),
    "process_peak_bytes": _metric("B", False, "peak resident bytes of the run's process"),
    "flops": _metric("flop", False, "counted matrix operations of one pass (multiply-add = 2)"),
    "flops_per_second": _metric("flop/s", True, "flops / median time"),
    "matrix_rate": _metric("flop/s", None, "rate of a large matrix product, measured in this run"),
    "bandwidth": _metric("B/s", None, "rate of a large copy (read + write), measured in this run"),
    "utilisation": _metric("fraction", True, "flops_per_second / the profile's or measured peak",
                           most=1e12),
    "parameters": _metric("1", None, "trainable parameters; shared ones count once"),
    "batch_size": _metric("1", None, "sequences in one timed batch", least=1.0, most=1e12),
    "timed_steps": _metric("1", None, "number of timed samples"),
    "stalls": _metric("1", False, "timed samples longer than 3 x median"),
    "compile_time": _metric("s", False, "first call under torch.compile, excluded from time",
                            least=0.0),
    # what the machine did meanwhile
    "processor_share": _metric("fraction", None, "processor time of the timing / (clock x threads)",
                               most=1e6),
    "waiting_share": _metric("fraction", False, "threads ready without a processor / clock, "
                             "of timed calls or of a training since it was last begun",
                             most=1e6),
    "steal_share": _metric(
        "fraction", False,
        "part of all processors' time that other virtual machines took",
    ),
    "other_load": _metric(
        "fraction", False,
        "part of all processors' time that other processes used",
    ),
    "clock_share": _metric("fraction", None, "hertz of processors or GPU after / before timing",
                           most=1e6),
    "discarded_samples": _metric("1", None, "timed samples that are excluded; label unwatched"),
    # writing token by token
    "prefill_time": _metric("s", False, "reading the context, to the first token's logits; median"),
    "first_token_time": _metric("s", False, "from the context to the first new token, median"),
    "token_time": _metric("s", False, "one more token for each text of the batch, median"),
    "token_time_percentile": _metric(
        "s", False,
        "percentile of the samples of token_time; label percentile",
    ),
    "prefill_peak_tensor_bytes": _metric("B", False, "peak of live tensor bytes over the prefill"),
    "state_bytes": _metric("B", False, "bytes that a batch remembers from one token to the next"),
    # compared with other implementations
    "peer_error": _metric("1", False, "largest error of output and gradients / largest value"),
    "peer_time": _metric("s", False, "one call, interleaved; labels peer, side (ours or peer)"),
    "peer_speedup": _metric("ratio", True, "time of the peer / ours, paired samples; label peer"),
    "peer_peak_tensor_bytes": _metric("B", False, "peak bytes of live tensors during one call"),
    "peer_bytes_ratio": _metric("ratio", False, "peak bytes of ours / of the peer; label peer",
                                least=0.0),
    # an approximation, compared with what it approximates; labels option, budget, target, layer
    "output_error": _metric("ratio", False, "Frobenius norm of (o - exact o) / that of exact o",
                            least=0.0, most=1e30),
    "matrix_error": _metric(
        "ratio", False,
        "error of the attention matrix: output_error with v = identity", least=0.0, most=1e+30,
    ),
    "topk_mass_recall": _metric(
        "fraction", True,
        "part of the weight of the k heaviest keys that is recovered; label k",
    ),
    "core_time": _metric("s", False, "one pass of the attention function alone, median of samples"),
    "core_time_ratio": _metric(
        "ratio", False,
        "attention function / SDPA, paired samples; label budget",
    ),
    # a search over options; labels study, trial, rung
    "trial_score": _metric("1", None, "label metric on validation, mean over search seeds; label "
                           "better: higher or lower", least=-1e39, most=1e39),
    "trial_steps": _metric("1", False, "optimiser steps of a trial, all of its seeds together"),
    "trial_time": _metric("s", False, "train_time of a trial, all seeds together", least=0.0),
    "trial_multiply_adds": _metric(
        "1", False,
        "counted multiply-adds of all training steps of a trial, all seeds",
    ),
    "chosen_trial": _metric("1", None, "number of the trial that validation chose; 0: untuned"),
}  # fmt: skip
