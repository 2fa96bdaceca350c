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
    """Return a metric; `least` and `most` replace the range that its unit has in `_RANGES`."""
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
JUDGED_BY = (
    "bits_per_byte", "bits_per_character", "word_perplexity", "perplexity", "mse", "accuracy",
)  # fmt: skip
"""A run, a comparison and a model are judged by the first of these metrics that they have."""
METRICS: dict[str, Metric] = {
    # quality
    "accuracy": _metric("fraction", True, "fraction of examples that the model answers correctly, "
        "on one split (label split)"),
    "mse": _metric("1", False, "mean squared error of the answers of one split (label split), for "
        "tasks that ask for a real number"),
    "exact_match": _metric("fraction", True, "fraction of sequences in which the model predicts "
        "every token correctly"),
    "top_1_accuracy": _metric("fraction", True, "fraction of items whose answer is the drawn one, "
        "for tasks that accept several answers"),
    "set_f1": _metric("fraction", True, "mean F1 score of the set of things in a written answer, "
        "against the right set"),
    "leaf_first": _metric("fraction", True, "fraction of written orders that begin with a node "
        "without parents, above the node of the question"),
    "macro_accuracy": _metric("fraction", True, "mean of the accuracies of all classes that occur "
        "in a split"),
    "scaled_accuracy": _metric("fraction", True, "(accuracy - a) / (1 - a), where a is the "
        "accuracy of a guess: 0 for a guess", least=-1e3),
    "mcc": _metric("1", True, "correlation of predicted and true class (Matthews' correlation "
        "coefficient), for two classes", least=-1.0, most=1.0 + 1e-6),
    "original_share": _metric("fraction", None, "accuracy of the answer that no token was "
        "replaced, for task.objective=replaced"),
    "generator_accuracy": _metric("fraction", None, "fraction of the masked tokens that the "
        "generator of task.objective=replaced predicts correctly"),
    "generator_loss": _metric("nat", None, "mean negative log-likelihood of masked tokens under "
        "the generator of task.objective=replaced"),
    "accuracy_by_group": _metric("fraction", True, "accuracy of the items of one part (label part) "
        "of a group of scores (label group), such as the rows of one length"),
    "loss": _metric("nat", False, "mean negative log-likelihood of the items of one split (label "
        "split)"),
    "bits_per_character": _metric("bit", False, "loss in bits: loss / ln 2, for texts in which an "
        "item is a character or byte"),
    "bits_per_byte": _metric("bit", False, "loss in bits per byte of the original text: loss / ln "
        "2 x tokens / bytes"),
    "bits_per_token": _metric("bit", False, "loss in bits: loss / ln 2, for texts in which an item "
        "is a token"),
    "perplexity": _metric("1", False, "exp(loss), where the loss is a mean over tokens"),
    "word_perplexity": _metric("1", False, "exp(summed loss of a text / number of words in the "
        "original text)"),
    "loss_by_position": _metric("nat", False, "mean loss of items at certain positions in a "
        "window, which the label part names"),
    "loss_by_document_position": _metric("nat", False, "mean loss of items at certain positions in "
        "a document, which the label part names"),
    "loss_by_frequency": _metric("nat", False, "mean loss of tokens with a certain frequency in "
        "the training data (label part)"),
    "train_loss": _metric("nat", False, "mean training loss of all steps since the previous "
        "row of this metric; a squared error if a task asks for a real number"),
    "train_penalty": _metric("nat", False, "penalty in the training loss of one step, summed over "
        "layers, such as the loss of an index (label penalty)"),
    # what a trained model looks at
    "span": _metric("token", None, "distance in tokens over which a trained model reads, for one "
        "measure, layer and head (labels)"),
    "occlusion_agreement": _metric("fraction", None, "fraction of answers that stay the same if "
        "all tokens farther away than W tokens are hidden; the label within is W"),
    "index_recall": _metric("fraction", True, "exact attention to what an index chooses, divided "
        "by that to as many keys with the most attention, of queries that have a choice; label "
        "length: a query has at most so many tokens up to itself, and more than half of them"),
    "index_mass": _metric("fraction", True, "exact attention to what an index chooses, of queries "
        "that have a choice (labels as of index_recall)"),
    "copy_advantage": _metric("nat", True, "mean loss of a segment of text without a copy before "
        "it, minus that with a copy; samples have the difference of each segment; labels distance "
        "(tokens between copy and segment), segment (its tokens), copied and control"),
    "copied_loss": _metric("nat", False, "mean loss of the segments of copy_advantage with a copy "
        "before them"),
    "recalled_loss": _metric("nat", False, "mean loss of a class of tokens (label kind): recalled "
        "tokens complete a pair of tokens that their window had before, and other tokens do not; "
        "the pair of a recalled token is rare (at most rare_at_most times in train) or frequent"),
    "recalled_share": _metric("fraction", None, "fraction of the scored tokens that are of a class "
        "(label kind, as of recalled_loss)"),
    "answer_rank": _metric("1", False, "mean rank of the correct answer by its likelihood, among "
        "as many as the label candidates says; 1: the most likely one", least=1.0),
    "candidate_accuracy": _metric("fraction", True, "fraction of rows in which the correct answer "
        "is the most likely candidate"),
    "answer_accuracy": _metric("fraction", True, "fraction of the bytes of correct answers that a "
        "model predicts, given those before"),
    "loss_part": _metric("nat", False, "summed loss of a class of tokens, divided by the number of "
        "all scored tokens (label kind, as of recalled_loss); samples have the mean of each block "
        "of successive windows"),
    "attention_mass": _metric("fraction", None, "fraction of all attention that goes to one region "
        "of keys (a segment or memory) or one bucket of ages in it; labels region, bucket, layer"),
    "attention_mass_error": _metric("fraction", None, "standard error of attention_mass, computed "
        "over sequences"),
    "learned_span": _metric("token", None, "how many tokens back one head has learned to attend; "
        "labels layer and head"),
    "span_flops": _metric("flop", False, "counted operations of one pass over a window, with "
        "learned or full spans (label spans)"),
    "span_flops_per_token": _metric("flop", False, "operations per token, computed from the mean "
        "span of each layer, for learned or full spans (label spans)"),
    "attention_distance": _metric("token", None, "mean distance |q - j| between query q and key j, "
        "weighted by attention, for one layer and head"),
    "attention_within": _metric("fraction", None, "fraction of attention to keys at a distance of "
        "at most W tokens, for one layer and head; the label within is W"),
    "attention_entropy": _metric("nat", None, "mean entropy of the attention weights of a query, "
        "for one layer and head", least=0.0),
    "attention_map": _metric("fraction", None, "mean attention that the queries of one block of "
        "positions give to the keys of the same block; samples have their attention to every "
        "block; labels layer, row (the block), positions (its size)"),
    "singular_value_share": _metric("fraction", None, "sum of the largest quarter of all singular "
        "values of an attention matrix, divided by the sum of all; samples have the same for the "
        "largest 1/64, 2/64, …; labels layer and head"),
    "projection_energy": _metric("fraction", None, "sum of the largest quarter of all nonzero "
        "squared singular values of W_Q W_K^T, divided by the sum of all; samples have the same "
        "for the largest 1, 2, …; labels layer and head"),
    "kernel_weight": _metric("fraction", None, "mean weight that a convolution gives to the "
        "current token; samples have the weights of all positions, and the label left counts those "
        "before it; labels layer, head, left"),
    "kernel_deviation": _metric("fraction", None, "standard deviation of kernel_weight over "
        "tokens"),
    "attention_similarity": _metric("1", None, "correlation, over heads, of the attention that two "
        "amino acids get; labels token and other name them, and the label score is their BLOSUM62 "
        "score", least=-1.0, most=1.0),
    "substitution_correlation": _metric("1", True, "correlation of attention_similarity with the "
        "BLOSUM62 score, over pairs of amino acids", least=-1.0, most=1.0),
    "keys_seen": _metric("token", None, "number of keys that one query attends to; samples have, "
        "for each key, the number of keys with the same weight (0: the query does not attend to "
        "this key); labels layer, head, row, same"),
    "source_accuracy": _metric("fraction", True, "accuracy of the model from which the weights "
        "were copied"),
    "source_loss": _metric("nat", False, "loss of the model from which the weights were copied"),
    "source_mse": _metric("1", False, "mse of the model from which the weights were copied"),
    # a trained model made smaller; labels method, amount, stage
    "head_importance": _metric("1", None, "importance of one head: mean absolute derivative of the "
        "loss with respect to a gate on the head; labels layer and head"),
    "decomposition_error": _metric("ratio", False, "Frobenius norm of W - W~, divided by that of "
        "W, if W~ approximates the weights W of a layer (label layer)", least=0.0),
    "disk_bytes": _metric("B", False, "size of the file with the model's weights; the label "
        "storage says whether it stores zeros"),
    "nonzero_parameters": _metric("1", None, "number of parameters that are not 0; a parameter "
        "in 8 bits is 0 if its integer is 0"),
    "compressed_time": _metric("s", False, "time of one forward pass of the compressed model, as "
        "the median of samples"),
    "whole_time": _metric("s", False, "time of one forward pass of the uncompressed model, "
        "measured interleaved with the compressed one"),
    "compressed_time_ratio": _metric("ratio", False, "time of the compressed model, divided by "
        "that of the uncompressed model, from paired samples"),
    # the training run
    "train_step_time": _metric("s", False, "median wall-clock time of one optimiser step during "
        "training"),
    "data_wait": _metric("fraction", False, "fraction of the training time that was spent waiting "
        "for batches", most=1e12),
    "train_time": _metric("s", False, "wall-clock time of all training steps; evaluations are "
        "excluded", least=0.0),
    "steps_to_target": _metric("1", False, "training steps until a validation reached "
        "runner.stop_at (label threshold); a run that never reached it has a reason instead"),
    "examples_seen": _metric("1", None, "number of training examples that were used"),
    "tokens_seen": _metric("token", None, "number of tokens in the training windows of all stages"),
    "tokens_per_second_per_device": _metric("token/s", True, "tokens_per_second, divided by the "
        "number of processes"),
    "bytes_sent_per_step": _metric("B", False, "bytes that one process sends in a training step; "
        "an all_reduce of b bytes among n processes counts as 2 b (n - 1) / n"),
    "bytes_sent_per_step_in_total": _metric("B", False, "bytes that all processes together send in "
        "a training step"),
    "scaling_efficiency": _metric("ratio", True, "efficiency of n processes from paired step times "
        "t1 (one process) and tn: t1 / tn for weak scaling, t1 / (n tn) for strong "
        "scaling", least=0.0),
    # of stored rows alone: no runner measures it any more
    "fitting_length": _metric("token", True, "longest sequence for which a training step fits into "
        "the memory of its processes"),
    "initial_parameters": _metric("1", None, "number of parameters whose first values have the "
        "same origin (label origin)"),
    # cost at one length
    "time": _metric("s", False, "time of one forward pass or training step (column mode), as the "
        "median of samples"),
    "reference_time": _metric("s", False, "time of the reference (label reference), measured "
        "interleaved with the model"),
    "time_ratio": _metric("ratio", False, "time of the model, divided by that of the reference "
        "(label reference), from paired samples"),
    "processor_time": _metric("s", False, "median processor time of the passes that time measures: "
        "seconds of all processors divided by threads, or those of the measuring thread if they "
        "are more"),
    "processor_time_ratio": _metric("ratio", False, "processor_time of the model, divided by that "
        "of the reference (label reference), from paired samples"),
    "tokens_per_second": _metric("token/s", True, "tokens of a batch, divided by its median time; "
        "for a training, the mean over its steps"),
    "peak_tensor_bytes": _metric("B", False, "largest number of bytes that tensors use at one "
        "moment of a pass"),
    "reference_peak_tensor_bytes": _metric("B", False, "peak_tensor_bytes of the reference (label "
        "reference)"),
    "peak_tensor_bytes_ratio": _metric("ratio", False, "peak_tensor_bytes of the model, divided by "
        "that of the reference (label reference)", least=0.0),
    "saved_bytes": _metric("B", False, "bytes of activations that autograd saves for the backward "
        "pass"),
    "process_peak_bytes": _metric("B", False, "largest resident memory of the process of the run"),
    "flops": _metric("flop", False, "counted operations in the matrix products of one pass; a "
        "multiply-add counts as 2"),
    "flops_per_second": _metric("flop/s", True, "flops, divided by the median time of a pass"),
    "matrix_rate": _metric("flop/s", None, "operations per second of a large matrix product, "
        "measured in this run"),
    "bandwidth": _metric("B/s", None, "bytes per second of a large copy (bytes read and written), "
        "measured in this run"),
    "utilisation": _metric("fraction", True, "flops_per_second, divided by the peak rate of the "
        "hardware profile, or else by matrix_rate", most=1e12),
    "parameters": _metric("1", None, "number of trainable parameters; a shared parameter counts "
        "once"),
    "batch_size": _metric("1", None, "number of sequences in one timed "
        "batch", least=1.0, most=1e12),
    "timed_steps": _metric("1", None, "number of timed samples"),
    "stalls": _metric("1", False, "number of timed samples that took longer than 3 times the "
        "median"),
    "compile_time": _metric("s", False, "time of the first call under torch.compile; the metric "
        "time excludes this call", least=0.0),
    # what the machine did meanwhile
    "processor_share": _metric("fraction", None, "processor time during the timing, divided by "
        "wall-clock time x threads", most=1e6),
    "waiting_share": _metric("fraction", False, "time that threads were ready but had no "
        "processor, divided by wall-clock time; for timed calls, or for a training since its last "
        "start", most=1e6),
    "steal_share": _metric("fraction", False, "fraction of the time of all processors that other "
        "virtual machines took"),
    "other_load": _metric("fraction", False, "fraction of the time of all processors that other "
        "processes used"),
    "clock_share": _metric("fraction", None, "clock rate of processors or GPU after the timing, "
        "divided by the clock rate before it", most=1e6),
    "discarded_samples": _metric("1", None, "number of timed samples that are excluded as "
        "disturbed; the label unwatched names what lra could not observe on this machine"),
    # writing token by token
    "prefill_time": _metric("s", False, "median time to read the context, up to the logits of the "
        "first new token"),
    "first_token_time": _metric("s", False, "median time from the start of the context to the "
        "first new token"),
    "token_time": _metric("s", False, "median time to write one more token of each text in the "
        "batch"),
    "token_time_percentile": _metric("s", False, "a percentile of the times to write one more "
        "token (label percentile)"),
    "prefill_peak_tensor_bytes": _metric("B", False, "largest number of bytes that tensors use at "
        "one moment of the prefill"),
    "state_bytes": _metric("B", False, "bytes of the state that a batch needs from one token to "
        "the next; label batch_size after a training: of so many texts"),
    # compared with other implementations
    "peer_error": _metric("1", False, "largest difference between lra and another implementation "
        "in output and gradients, divided by the largest value"),
    "peer_time": _metric("s", False, "time of one call of lra or of another implementation, "
        "measured interleaved; label peer names the other one, and label side is ours or peer"),
    "peer_speedup": _metric("ratio", True, "time of the other implementation (label peer), divided "
        "by that of lra, from paired samples"),
    "peer_peak_tensor_bytes": _metric("B", False, "largest number of bytes that tensors use at one "
        "moment of a call"),
    "peer_bytes_ratio": _metric("ratio", False, "peak bytes of lra, divided by those of the other "
        "implementation (label peer)", least=0.0),
    # an approximation, compared with what it approximates; labels option, budget, target, layer
    "output_error": _metric("ratio", False, "Frobenius norm of the error of the output, divided by "
        "that of the exact output", least=0.0, most=1e30),
    "matrix_error": _metric("ratio", False, "relative error of the attention matrix: output_error "
        "with the identity as values", least=0.0, most=1e+30),
    "topk_mass_recall": _metric("fraction", True, "fraction of the exact attention to the k "
        "heaviest keys of a query that the approximation also gives to them, counted for each key "
        "up to its exact weight (label k)"),
    "core_time": _metric("s", False, "time of one pass of the attention function alone, as the "
        "median of samples"),
    "core_time_ratio": _metric("ratio", False, "time of the attention function, divided by that of "
        "exact attention (SDPA), from paired samples; label budget"),
    # a search over options; labels study, trial, rung
    "trial_score": _metric("1", None, "mean score of a trial on validation data over its seeds; "
        "label metric names the score, and label better is higher or "
        "lower", least=-1e39, most=1e39),
    "trial_steps": _metric("1", False, "number of optimiser steps of a trial, summed over its "
        "seeds"),
    "trial_time": _metric("s", False, "training time of a trial, summed over its seeds", least=0.0),
    "trial_multiply_adds": _metric("1", False, "counted multiply-adds of all training steps of a "
        "trial, summed over its seeds"),
    "chosen_trial": _metric("1", None, "number of the trial that validation chose; 0 means that "
        "the options are not tuned"),
}  # fmt: skip
