"""The choices of the backbone by name, if no other module defines them."""

from enum import StrEnum, auto


class Head(StrEnum):
    """What the model predicts."""

    classification = auto()
    pair = auto()
    language_modelling = auto()
    """One token at every position, from the tokens before it."""
    masked_modelling = auto()
    """One token at every position, from both sides."""
    sequence_to_sequence = auto()
    """One token at every position after a source, from the source and the tokens before it; tokens
    of the source attend to each other."""

    permutation_modelling = auto()
    """One token at some positions, from the others in an order that the batch defines."""
    reconstruction = auto()
    """Every token of a row, each from the output at the last one and from its position."""
    replaced_detection = auto()
    """At every position, whether a generator has replaced the token."""

    regression = auto()
    """One real number for a sequence, whose loss is the squared error."""


TOKEN_HEADS = frozenset(set(Head) - {Head.classification, Head.pair, Head.regression})
"""Heads with an answer at every position."""
CAUSAL_HEADS = frozenset({Head.language_modelling, Head.sequence_to_sequence, Head.reconstruction})
"""Heads of models whose layers let no token depend on a later one."""


class Residual(StrEnum):
    """How the input and output of a block are joined."""

    pre_norm = auto()
    """x + mixer(LN x), then x + network(LN x); a norm follows the last layer."""
    post_norm = auto()
    """LN(x + mixer(x)), then LN(x + network(x)); a norm precedes the first layer, as in BERT."""
    output_norm = auto()
    """x + LN(mixer(x)), then x + LN(network(x)), as in OLMo 2; a norm follows the last layer."""
    sandwich = auto()
    """x + LN(mixer(LN x)), then x + LN(network(LN x)); a norm follows the last layer."""
    none = auto()
    """mixer(x), then network(x), without norms between them, as in recurrent networks; a norm
    closes the stack."""
    reversible = auto()
    """Two streams, each changed by a function of the other: no layer stores activations."""
    attention = auto()
    """mixer(LN x), then network(LN x), where x is a mean of the embedding and all earlier outputs
    with learned weights (attention over depth, arXiv:2603.15031); a norm closes the stack."""


class StreamsOut(StrEnum):
    """How a reversible stack joins its two streams."""

    mean = auto()
    concat = auto()
    """Concatenated, with twice the width for the output layer (trax, transformers)."""


class Softmax(StrEnum):
    """How probabilities of the vocabulary are computed."""

    full = auto()
    adaptive = auto()
    """Frequent ids at once, rare ones in groups (arXiv:1609.04309), for large vocabularies."""


class InitialMaps(StrEnum):
    """How linear maps are drawn that have no rule of their own: U(-1, 1) / sqrt(inputs).

    `pytorch` draws biases like weights; with `pytorch_zero_biases` they are zeros.
    """

    pytorch = auto()
    pytorch_zero_biases = auto()


class Embedding(StrEnum):
    """How ids become vectors."""

    full = auto()
    """One table."""
    adaptive = auto()
    """Narrower vectors for rarer ids, in the groups of `softmax_cutoffs` (arXiv:1809.10853)."""


class DecoderMixer(StrEnum):
    """Which mixer the decoder after an encoder uses."""

    exact = auto()
    """Softmax attention, as in LED (arXiv:2004.05150, section 7)."""
    family = auto()
    """The model's family, if it can be causal."""


class Padding(StrEnum):
    """How padding reaches the mixers."""

    masked = auto()
    """As a mask, which every mixer must support."""
    zeroed = auto()
    """As zeros before each mixer, which gets no mask, so padding still counts."""
    attended = auto()
    """As ordinary tokens: no mixer gets a mask; only `pooling` excludes padding."""
    passed = auto()
    """As a mask, also to mixers that hide other tokens by it (`Traits.hides_others`)."""


class ClsKeep(StrEnum):
    """Whether mixers treat the CLS vector as a real token."""

    always = auto()
    first_token = auto()
    """Only if the first token is real (the Long Range Arena's code: not before a black pixel, which
    counts as padding there)."""
