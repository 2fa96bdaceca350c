"""What can be chosen of the backbone by name, where no module of a choice's own holds it."""

from enum import StrEnum, auto


class Head(StrEnum):
    """What the model answers."""

    classification = auto()
    pair = auto()
    language_modelling = auto()
    """One token for every position, which sees what stands before it."""
    masked_modelling = auto()
    """One token for every position, which sees both sides."""
    sequence_to_sequence = auto()
    """One token for every position behind a source, which sees the source and what stands before
    it; tokens of the source see each other."""

    permutation_modelling = auto()
    """One token for some positions, which sees the others in an order of the batch."""


TOKEN_HEADS = frozenset(set(Head) - {Head.classification, Head.pair})
"""Those that answer at every position."""
CAUSAL_HEADS = frozenset({Head.language_modelling, Head.sequence_to_sequence})
"""Those whose answers see no later token."""


class Residual(StrEnum):
    """How a block's input and output are joined."""

    pre_norm = auto()
    """x + mixer(LN x), then x + network(LN x); a norm closes the stack."""
    post_norm = auto()
    """LN(x + mixer(x)), then LN(x + network(x)); a norm opens the stack, as in BERT."""
    none = auto()
    """mixer(x), then network(x), without norms between them: a plain stack, as of recurrent
    networks; a norm closes it."""
    reversible = auto()
    """Two streams, each changed by a function of the other: no activation is kept per layer."""


class StreamsOut(StrEnum):
    """What a reversible stack makes of its two streams."""

    mean = auto()
    concat = auto()
    """Twice the width for the head (trax, transformers)."""


class Softmax(StrEnum):
    """How a token is drawn from the vocabulary."""

    full = auto()
    adaptive = auto()
    """Frequent ones at once, rare ones in groups (arXiv:1609.04309): for large vocabularies."""


class Embedding(StrEnum):
    """How ids become vectors."""

    full = auto()
    """One table."""
    adaptive = auto()
    """Narrower vectors for rarer ids, in the groups of `softmax_cutoffs` (arXiv:1809.10853)."""


class DecoderMixer(StrEnum):
    """What mixes the tokens of a decoder behind an encoder."""

    exact = auto()
    """Softmax attention, as in LED (arXiv:2004.05150, section 7)."""
    family = auto()
    """The model's own family, where it can look back alone."""


class Padding(StrEnum):
    """How padding reaches the mixers."""

    masked = auto()
    """As a mask, which every mixer must support."""
    zeroed = auto()
    """As zeros in place of its vectors before each mixer, which sees no mask: it still counts."""
    attended = auto()
    """As tokens like all others: no mask reaches a mixer. `pooling` alone tells them apart."""
    passed = auto()
    """As a mask, also to mixers that hide other tokens by it (`Traits.hides_others`)."""


class ClsKeep(StrEnum):
    """Whether mixers see the CLS vector as a real token."""

    always = auto()
    first_token = auto()
    """Where the first token is one (the Long Range Arena's code: not before a black pixel, which is
    padding there)."""
