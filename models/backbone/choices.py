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
    """Residual connections and the places of norms."""

    pre_norm = auto()
    """x + mixer(LN x), then x + network(LN x); a norm follows the last layer."""
    post_norm = auto()
    """LN(x + mixer(x)), then LN(x + network(x)); a norm precedes the first layer, as in BERT."""
    none = auto()
    """mixer(x), then network(x), without norms between them, as for recurrent networks; a norm
    follows the last layer."""
    reversible = auto()
    """Two streams, each updated by a function of the other, so that layers store no activations."""


class StreamsOut(StrEnum):
    """What a reversible stack makes of its two streams."""

    mean = auto()
    concat = auto()
    """Concatenated, with twice the width for the output layer (trax, transformers)."""


class Softmax(StrEnum):
    """Kind of softmax over the vocabulary."""

    full = auto()
    adaptive = auto()
    """Frequent ids directly, rare ids in groups (arXiv:1609.04309); for large vocabularies."""


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
    """The model's family, if it has a causal form."""


class Padding(StrEnum):
    """How padding reaches the mixers."""

    masked = auto()
    """As a mask, which every mixer must support."""
    zeroed = auto()
    """Vectors at padding become zeros before each mixer, without a mask: padding still counts."""
    attended = auto()
    """As ordinary tokens, without a mask in mixers; only `pooling` treats padding differently."""
    passed = auto()
    """As a mask, also to mixers that hide other tokens by it (`Traits.hides_others`)."""


class ClsKeep(StrEnum):
    """Whether mixers see the CLS vector as a real token."""

    always = auto()
    first_token = auto()
    """Only if the first token is real (as in the Long Range Arena's code, where a black pixel is
    padding)."""
