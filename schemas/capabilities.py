"""What a base model can do, as its registration finds it: read by admission, training, serving and people."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Value
from schemas.specification import Method


class LossForm(Value):
    """How a model makes logits of hidden states: cap * tanh(head(hidden) * scale / cap), or without a cap."""

    scale: float = 1.0
    """Factor that logits are multiplied by before the loss."""
    soft_cap: Annotated[float, Field(gt=0)] | None = None
    """Bound that logits are squashed to by tanh; None: they are not."""


class BaseCapabilities(Value):
    """What a base model can do, found without weights: by its configuration, headers and chat template."""

    family: str
    """`model_type` of the configuration."""
    architecture: str
    """The class that trains it."""
    num_layers: Count
    """Layers of the network."""
    hidden_size: Count
    """Width of the network."""
    intermediate_size: Count = 0
    """Inner size of a layer's feed-forward part, of one expert where it has experts; 0: it is not configured."""
    num_experts: Count = 0
    """Experts of a layer; 0: none."""
    vocab_size: Count
    """Rows of the output matrix."""
    tie_word_embeddings: bool = False
    """Whether input table and head are one matrix."""
    weights_dtype: str = ""
    """Type of most values in the files, as safetensors names it."""
    attention: Literal["sdpa", "eager"]
    """The fastest of PyTorch's attentions that the family works with."""
    loss: LossForm | None = None
    """How the model makes its logits; None: in a way that the loss does not know."""
    lora_targets: tuple[str, ...] = ()
    """Last parts of the names of the matrices that `all-linear` adapts."""
    lora_values_per_rank: Count = 0
    """Values that each unit of rank adds on all matrices that `all-linear` adapts."""
    converts_names: bool = False
    """Whether tensors have other names in memory than in the files, as experts do."""
    cache_values_per_token: Count = 0
    """Numbers that attention keeps for each token of a request; times 2 in bytes where they are 16 bits wide."""
    refused_methods: Mapping[Method, str] = Field(default={})
    """Reasons by method why it cannot be trained with lora, which trains an adapter, or sft, which trains all
    weights. What holds of one holds of every other method with the same weights."""
    rows: Mapping[str, str] = Field(default={})
    """Kinds of conversations as training rows, each with why its chat template cannot show or teach it; empty where
    it can. Rows of prompt and completion need no template."""
    marks_answers: bool | None = None
    """Whether its own chat template marks what the assistant says; False: that is derived from what the template
    writes. None: it has no template, or was registered before this was looked at."""
