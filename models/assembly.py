"""From the frame's options to blocks and the stack that holds them."""

from collections.abc import Sequence

from torch import nn

from models.frame import BackboneConfig, Padding, Residual, StreamsOut
from models.reversible import ReversibleStack
from models.stack import Block, PostNormBlock, PostNormStack, Stack


def block_of(mixer: nn.Module, config: BackboneConfig) -> Block:
    """Return a block around `mixer`; its network is drawn from the global random state."""
    kind = PostNormBlock if config.residual == Residual.post_norm else Block
    return kind(
        mixer,
        width=config.width,
        feed_forward=config.feed_forward,
        feed_forward_width=config.feed_forward_width,
        dropout=config.dropout,
        feed_forward_bias=config.feed_forward_bias,
        chunks=config.feed_forward_chunks,
        norm_epsilon=config.norm_epsilon,
    )


def stack_of(blocks: Sequence[Block], config: BackboneConfig) -> Stack:
    """Return the stack of these blocks.

    Raises:
        Unsupported: A mixer cannot stand in a reversible stack.
    """
    zeroed = config.padding == Padding.zeroed
    if config.residual == Residual.reversible:
        return ReversibleStack(
            blocks,
            width=config.width,
            concat=config.reversible_output == StreamsOut.concat,
            zeroed=zeroed,
            norm_epsilon=config.norm_epsilon,
        )
    kind = PostNormStack if config.residual == Residual.post_norm else Stack
    return kind(
        blocks,
        width=config.width,
        checkpointing=config.activation_checkpointing,
        zeroed=zeroed,
        norm_epsilon=config.norm_epsilon,
    )
