"""Architecture catalogue: models with their sources, exact parameter counts, and what can be planned.

Imports nothing of the planner.
"""

from models_zoo.catalogue import (
    UnknownModelError,
    architecture_names,
    list_architectures,
    load_architecture,
    other_names,
)
from models_zoo.hugging_face import UnsupportedConfigError, from_hugging_face, is_hugging_face, supported_families
from models_zoo.params import (
    LayerParameters,
    active_parameters,
    embedding_parameters,
    encoder_of,
    encoder_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    projector_parameters,
    total_parameters,
)
from models_zoo.schema import SPECIAL_LAYERS, Architecture, special_layers

__all__ = [
    "SPECIAL_LAYERS",
    "Architecture",
    "LayerParameters",
    "UnknownModelError",
    "UnsupportedConfigError",
    "active_parameters",
    "architecture_names",
    "embedding_parameters",
    "encoder_of",
    "encoder_parameters",
    "final_norm_parameters",
    "from_hugging_face",
    "head_parameters",
    "is_hugging_face",
    "layer_parameters",
    "list_architectures",
    "load_architecture",
    "other_names",
    "projector_parameters",
    "special_layers",
    "supported_families",
    "total_parameters",
]
