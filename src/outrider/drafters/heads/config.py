"""The shapes of trained heads, as the rest of the package sees them whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EagleConfig:
    """An EAGLE head of one layer.

    Layer ids count as transformers' `hidden_states` do: 0 is the embedding, i the state that enters layer i, and N, the
    number of layers, the last state after the final norm.

    Args:
        version: 1 for EAGLE-1 and EAGLE-2, whose weights are the same, or 3.
        hidden_size: H of the head.
        target_hidden_size: Ht.
        intermediate_size: F, width of the MLP.
        num_heads: query heads.
        num_kv_heads: key and value heads, a divisor of `num_heads`.
        head_dim: D, even.
        vocab_size: Vt, the target's.
        draft_vocab_size: Vd, at most Vt.
        feature_layers: ids of the target's states that it reads, in order; (N,) for version 1.
        rms_norm_eps: of all its norms.
        rope_theta: base of its rotary angles, the head's own and not the target's.
        max_positions: tokens that it was made for.
        norm_before_residual: whether the residual starts from the normed state.
        norm_before_fc: whether one norm goes over the joined features.
        fc_norm: whether each feature has a norm of its own; not with `norm_before_fc`.
        norm_output: whether the normed state is what goes into the next step.
    """

    version: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    feature_layers: tuple[int, ...]
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    max_positions: int = 2048
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class MedusaConfig:
    """Medusa heads: head k guesses the token k + 2 places after the state that it reads.

    Args:
        num_heads: K.
        num_layers: L residual blocks per head.
        hidden_size: H, the target's.
        vocab_size: Vt.
        draft_vocab_size: Vd, rows of each head's output.
    """

    num_heads: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int


@dataclass(frozen=True)
class MlpConfig:
    """An MLP speculator (2404.19124).

    Args:
        num_steps: tokens that it drafts.
        hidden_size: Ht.
        inner_size: width of its state.
        vocab_size: Vt.
        scale_input: whether the target's state is normed first.
    """

    num_steps: int
    hidden_size: int
    inner_size: int
    vocab_size: int
    scale_input: bool = False


HeadConfig = EagleConfig | MedusaConfig | MlpConfig
