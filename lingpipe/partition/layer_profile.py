"""Times of layers, measured on a device, and costs of stages computed from these times."""

import collections
import concurrent.futures
import functools
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.partition import layer_analysis
from lingpipe.partition.layer_analysis import LayerAnalysis
from lingpipe.schedules import Schedule, StageCosts
from lingpipe.stages import micro_batches

_FILE_NAME = 'layer_times.json'
_LEAST_RUNS = 5
_LEAST_SECONDS = 0.1
_SEED = 1
# A backward pass computes two gradients where the forward pass computes one product.
_FLOPS_OF_BACKWARD = 2
# The part of a forward pass's time that recompute='selective' may repeat if there is no memory limit.
MOST_SELECTIVE = 0.3


class LayerTime(NamedTuple):
    """The times of one layer for one micro-batch."""

    forward_seconds: float
    # from stored activations, for inputs and weights, including the summation of weight gradients over micro-batches
    backward_seconds: float
    # additional time of a backward pass that starts from the layer's inputs. It is at most that of a forward pass,
    # because only what is read is recomputed: in a decoder block, all but the last product
    recomputed_seconds: float

    @property
    def seconds(self) -> float:
        """The sum of forward and backward seconds, without recomputation."""
        return self.forward_seconds + self.backward_seconds


class Job(NamedTuple):
    """A layer to measure."""

    layer: str  # describes the layer without its name
    make_layer: Any  # function that returns the layer with its weights; called on the device
    inputs: Any  # nest of `tf.TensorSpec` of its inputs
    outputs: Any  # nest of `tf.TensorSpec` of its outputs
    has_backward: bool = True

    def key(self, device: str) -> str:
        """Return the key of this measurement in the cache."""
        policy = keras.config.dtype_policy().name
        return '\n'.join([self.layer, str(self.inputs), _device_kind(device), policy, tf.__version__])


def _read_times(path):
    """Return the cached times as a dictionary from `Job.key(...)` to `LayerTime`."""
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path, 'rb') as stream:
        return {key: LayerTime(*seconds) for key, seconds in json.loads(stream.read()).items()}


def _write_times(path, times):
    """Replace the file atomically."""
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.gfile.GFile(f'{path}.new', 'w') as stream:
        stream.write(json.dumps(times, indent=1, sort_keys=True) + '\n')
    tf.io.gfile.rename(f'{path}.new', path, overwrite=True)


def profile_layers(layer_params: list[hyperparams.InstantiableParams], input_specs: Any, device: str,
                   cache_dir: str | None = None,
                   analyses: list[layer_analysis.LayerAnalysis] | None = None) -> list[LayerTime]:
    """Measure every layer of a stack on a device. The other devices should be idle meanwhile.

    Args:
        input_specs: nest of `tf.TensorSpec` `[micro_batch, ...]` of the input. Every dimension is known.
        device: name of the device, a CPU or GPU.
        cache_dir: folder for cached times. An equal measurement is not repeated. None: no cache.
        analyses: result of `layer_analysis.analyse_layers` for the same stack. None: analyse the stack here.
    """
    analyses = analyses or layer_analysis.analyse_layers(layer_params, input_specs)
    rows = tf.nest.flatten(input_specs)[0].shape[0]
    specs = [input_specs, *[micro_batches.specs_of(layer.outputs, rows) for layer in analyses]]
    return measure([
        Job(layer_analysis.identity(params), functools.partial(_make_layer, params, inputs), inputs, outputs)
        for params, inputs, outputs in zip(layer_params, specs, specs[1:])], device, cache_dir)


def measure(jobs: list[Job], device: str, cache_dir: str | None = None) -> list[LayerTime]:
    """Measure layers whose times are not in the cache, and return the times of all layers."""
    path = tf.io.gfile.join(os.path.expanduser(cache_dir), _FILE_NAME) if cache_dir else None
    known, keys = _read_times(path) if path else {}, [job.key(device) for job in jobs]
    num_known = len(known)
    for key, job in zip(keys, jobs):
        if key not in known:
            random_state = random.getstate()
            known[key] = _in_new_thread(_profile, job, device)
            random.setstate(random_state)  # from which Keras draws the seeds of initial weights
            gc.collect()  # frees the weights now: a traced function and its layer refer to each other
    if path and len(known) > num_known:
        _write_times(path, known)
    return [known[key] if job.has_backward else LayerTime(known[key].forward_seconds, 0.0, 0.0)
            for key, job in zip(keys, jobs)]


def _device_kind(device):
    """Return 'CPU', or the model of a GPU."""
    kind = tf.DeviceSpec.from_string(device).device_type or 'CPU'
    details = [tf.config.experimental.get_device_details(found) for found in tf.config.list_physical_devices(kind)]
    return next((found['device_name'] for found in details if 'device_name' in found), kind)


def _in_new_thread(function, *arguments):
    """Call a function outside all current graphs, tapes and Keras scopes."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(keras.config.set_dtype_policy, keras.config.dtype_policy()).result()
        return thread.submit(function, *arguments).result()


def _make_layer(params, inputs):
    layer = params.Instantiate()
    layer_analysis.build_layer(layer, inputs)
    return layer


def _profile(job, device):
    """Make a layer, measure its times and release it."""
    with tf.device(device):
        layer = job.make_layer()
        values = [tf.identity(variable.value.read_value()) for variable in layer.variables]
        sums = [tf.zeros(variable.shape, variable.dtype) for variable in layer.variables if variable.trainable]
        arguments = [tf.nest.map_structure(_example, job.inputs), values,
                     [_example(spec) for spec in layer_analysis.floats(job.outputs)], sums]

        def forward(inputs, values, gradients, sums):
            return layer_analysis.forward(layer, inputs, values)

        def both(inputs, values, gradients, sums):
            outputs, found = layer_analysis.forward_and_backward(layer, inputs, values, lambda outputs: gradients)
            by_inputs = found[:len(found) - len(sums)]
            return outputs, by_inputs, [total + gradient for total, gradient in zip(sums, found[len(by_inputs):])]

        def backward_from_inputs(*arguments):
            return both(*arguments)[1:]

        traces = [tf.function(function, autograph=False).get_concrete_function(*arguments)
                  for function in (forward, both, backward_from_inputs)]
        state = [(variable, variable.read_value()) for traced in traces for variable in traced.graph.variables]
        seconds = _median_seconds([_as_call(traced, arguments) for traced in traces])
        for variable, value in state:  # random generators, from which a layer may draw
            variable.assign(value)
    # Times are noisy: negative ones become 0, and recomputation takes at most a forward pass.
    forward_seconds, both_seconds, from_inputs_seconds = seconds
    backward_seconds = max(both_seconds - forward_seconds, 0.0)
    recomputed_seconds = min(max(from_inputs_seconds - backward_seconds, 0.0), forward_seconds)
    return LayerTime(forward_seconds, backward_seconds, recomputed_seconds)


def _as_call(traced, arguments):
    """Return a function without arguments that calls `traced`."""
    tensors = [*tf.nest.flatten(arguments), *traced.captured_inputs]
    # A pipeline calls functions in the same way, with little Python overhead.
    return lambda: tf.raw_ops.PartitionedCall(args=tensors, Tout=[output.dtype for output in traced.outputs], f=traced)


def _median_seconds(calls):
    """Return the median seconds of each call."""
    for call in calls:
        call()
    runs, start = [], time.perf_counter()
    while len(runs) < _LEAST_RUNS or time.perf_counter() - start < _LEAST_SECONDS:
        runs.append([_seconds(call) for call in calls])  # all calls in every round, so other load affects all alike
    return [statistics.median(seconds) for seconds in zip(*runs)]


def _seconds(call):
    tf.test.experimental.sync_devices()
    start = time.perf_counter()
    call()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - start


def _example(spec):
    """Return an example tensor."""
    if spec.dtype.is_floating:
        return tf.cast(tf.random.stateless_normal(spec.shape, [_SEED, 0]), spec.dtype)
    # Masks are True. Integers are 0, which is a valid index.
    return tf.ones(spec.shape, spec.dtype) if spec.dtype.is_bool else tf.zeros(spec.shape, spec.dtype)


class StageCostModel:
    """Costs of stages, computed from the times of their layers.

    Args:
        recompute: what stages recompute. 'selective' is assumed to take `MOST_SELECTIVE` times the forward time.
        transfers: for each layer, the seconds for sending its outputs to the next device. None: 0.
        updates: for each layer, the seconds for updating its weights once per step. None: 0.
    """

    def __init__(self, times: Sequence[LayerTime], recompute: str, transfers: Sequence[float] | None = None,
                 updates: Sequence[float] | None = None) -> None:
        forward, backward, recomputed = np.array(times, np.float64).T
        repeated = np.where(backward > 0, forward, 0.0)
        nothing = np.zeros_like(forward)
        self._transfers = nothing if transfers is None else np.asarray(transfers)
        # With 'layer', a stage runs two more forward passes. The first one recomputes the inputs of the layers, so it
        # does not run the last layer. The second one runs inside the backward action. It recomputes only the residuals.
        self._last_is_left_out = repeated if recompute == 'layer' else nothing
        inside, ahead = {
            'none': (nothing, nothing), 'selective': (nothing, MOST_SELECTIVE * repeated),
            'stage': (nothing, repeated), 'layer': (recomputed, repeated)}[recompute]
        updates = nothing if updates is None else np.asarray(updates)
        self._layers = np.stack([forward, backward / 2 + inside, backward / 2, ahead, updates])

    def of_layers(self, schedule: Schedule) -> np.ndarray:
        """Return the mean seconds per micro-batch that each layer would take in each stage, `[stages, layers]`."""
        # A backward action that directly follows its own forward action needs no recomputation before it. In 1F1B, this
        # holds for all micro-batches in the last stage. In GPipe, it holds for one micro-batch in each stage.
        kept = collections.Counter(action.stage for action in schedule.backwards_after_own_forward())
        repeats = np.array([[1 - kept[stage] / schedule.num_micro_batches] for stage in range(schedule.num_stages)])
        forward, backward, weight_gradient, ahead, _ = self._layers
        return forward + backward + weight_gradient + repeats * ahead

    def stages(self, ends: Sequence[int]) -> list[StageCosts]:
        """Return one `StageCosts` per stage. Stage i ends before layer `ends[i]`."""
        starts, last = [0, *ends[:-1]], np.array(ends) - 1
        forward, backward, weight_gradient, ahead, update = np.add.reduceat(self._layers, starts, axis=1)
        weight_gradient[0] += backward[0]  # the first stage needs no gradients of its inputs
        backward[0] = 0.0
        recompute = np.maximum(ahead - self._last_is_left_out[last], 0.0)  # sums have rounding errors
        costs = forward, backward, weight_gradient, recompute, self._transfers[last], update
        return [StageCosts(*row) for row in np.transpose(costs).tolist()]


def times_by_flops(analyses: Sequence[LayerAnalysis]) -> list[LayerTime]:
    """Return a `LayerTime` for each layer, as if every floating-point operation took a second."""
    return [LayerTime(*(layer.flops.total * factor for factor in (1, _FLOPS_OF_BACKWARD * layer.has_backward,
                                                                  layer.has_backward))) for layer in analyses]
