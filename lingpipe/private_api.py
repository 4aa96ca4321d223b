"""Every private module of TensorFlow and Keras that LingPipe uses, each with the reason; no other module imports one.

`tests/test_private_names.py` looks all of their names up in the versions at hand, and the private attributes that
LingPipe reads.
"""

# keras_backend: casting as a layer does (AutocastScope), and running a loss on symbols only (compute_output_spec).
from keras.src import backend as keras_backend

# global_state: Keras queues variables that are made in symbolic runs of a model; some must be made at once, or never.
# masking: masks travel as attributes of tensors, and have no public way to be read or set.
# stateless_scope: whether a pipeline is called with the values of a keras.StatelessScope, which partitions cannot read.
from keras.src.backend.common import global_state, masking, stateless_scope

# tensorflow_optimizer, base_optimizer: the methods of an optimizer by which its arithmetic gets to devices.
from keras.src.backend.tensorflow import optimizer as tensorflow_optimizer

# keras_losses: telling stock losses, which are known to be means over examples, from those of users.
from keras.src.losses import losses as keras_losses

# Functional: telling models that are a graph of layers from others.
from keras.src.models.functional import Functional
from keras.src.optimizers import base_optimizer

# seed_generator: the generator of keras.random functions without a seed; its numbers shall depend on the micro-batch.
from keras.src.random import seed_generator

# tracking: an attribute of a model that is no part of it.
from keras.src.utils import tracking

# xla: XLA's operations that TensorFlow has no public name for, such as the barrier that keeps a recomputation.
from tensorflow.compiler.tf2xla.python import xla

# pywrap_tfe: a stage is traced with gradients also where a tape outside was told to stop, as by tf.recompute_grad.
from tensorflow.python import pywrap_tfe

# ag_ctx: translating the layers of users by AutoGraph, and nothing else.
from tensorflow.python.autograph.core import ag_ctx

# xla_sharding: what XLA's partitioner is told; public names cover DTensor only.
from tensorflow.python.compiler.xla.experimental import xla_sharding

# distributed_values: what tf.distribute's all-reduce takes; public code gets one inside of a strategy only.
from tensorflow.python.distribute import values as distributed_values

# record: gradients beyond first order are refused, of tapes too.
from tensorflow.python.eager import record

# custom_gradient: naming a weight that a function with a gradient of its own reads past its arguments.
from tensorflow.python.ops import custom_gradient

# save_context: an exported model gives no gradients.
from tensorflow.python.saved_model import save_context

__all__ = [
    'Functional', 'ag_ctx', 'base_optimizer', 'custom_gradient', 'distributed_values', 'global_state', 'keras_backend',
    'keras_losses',
    'masking', 'pywrap_tfe', 'record', 'save_context', 'seed_generator', 'stateless_scope', 'tensorflow_optimizer',
    'tracking',
    'xla', 'xla_sharding']
