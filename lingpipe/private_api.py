"""Every private module of TensorFlow and Keras that LingPipe uses. Only this file imports private modules.

`tests/test_private_names.py` checks that these names exist in the installed versions.
"""

import importlib
from typing import Any

# keras_backend: casting as a layer does (AutocastScope), and running a loss on symbols only (compute_output_spec).
from keras.src import backend as keras_backend

# global_state: Keras queues variables that are created while a model runs symbolically; some must be created at once.
# masking: masks travel as attributes of tensors, and have no public way to be read or set.
# stateless_scope: detecting pipelines and traces inside a keras.StatelessScope, whose values they cannot read or keep.
from keras.src.backend.common import global_state, masking, stateless_scope

# tensorflow_optimizer, base_optimizer: the methods of a Keras optimizer that run its arithmetic where the weights are.
from keras.src.backend.tensorflow import optimizer as tensorflow_optimizer

# keras_losses: distinguishing stock losses, which are known to be means over examples, from users' losses.
from keras.src.losses import losses as keras_losses

# Functional: distinguishing models that are a graph of layers from others.
from keras.src.models.functional import Functional
from keras.src.optimizers import base_optimizer

# seed_generator: the generator of keras.random functions without a seed; its numbers must depend on the micro-batch.
from keras.src.random import seed_generator

# tracking: setting an attribute of a model that Keras does not track as a part of it.
from keras.src.utils import tracking

# xla: XLA's operations without a public name in TensorFlow, such as the barrier that keeps a recomputation.
from tensorflow.compiler.tf2xla.python import xla

# pywrap_tfe: tracing a stage with gradients even if an outer tape was stopped, as by tf.recompute_grad; detecting
# tensors with tangents of forward mode.
from tensorflow.python import pywrap_tfe

# xla_sharding: annotations for XLA's partitioner; public names cover DTensor only.
from tensorflow.python.compiler.xla.experimental import xla_sharding

# distributed_values: arguments of tf.distribute's all-reduce; public code gets them only inside a strategy.
from tensorflow.python.distribute import values as distributed_values

# eager_context: changing the workers of a cluster that this process is connected to, and sending them an error; not
# optimising the graph of a step, while the user's other functions are optimised.
from tensorflow.python.eager import context as eager_context

# record: refusing gradients beyond first order, also by gradient tapes.
from tensorflow.python.eager import record

# function_context: retracing functions whose variables have moved.
from tensorflow.python.eager.polymorphic_function import function_context

# custom_gradient: naming a weight that a function with a custom gradient reads without having it as an argument.
from tensorflow.python.ops import custom_gradient

# save_context: detecting that a model is being exported, which gives no gradients.
from tensorflow.python.saved_model import save_context


def keras_hub_presets() -> Any:
    """Return KerasHub's module for presets, which can read weights into a model that is already on devices."""
    return importlib.import_module('keras_hub.src.utils.preset_utils')  # here, so KerasHub need not be installed
