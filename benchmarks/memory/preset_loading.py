"""What a preset takes of each process while it is loaded: no process should ever hold more than its partition.

    pip install -e '.[hub]'
    python -m benchmarks.memory.preset_loading

The chief keeps no weights. It has what Python and TensorFlow note down of the layers, whether there is a preset or not, and the
tensor that it is reading.

A preset of Hugging Face's format with random weights, one file of safetensors a layer, is loaded into a pipeline whose
partitions are on two workers of a cluster. Memory is what a process has beyond its state before (RssAnon of
/proc/PID/status, which leaves out files that are mapped), looked at every few milliseconds.
"""

import json
import math
import pathlib
import re
import tempfile
import threading

import numpy as np
import tensorflow as tf
from absl import app, flags

import lingpipe
from benchmarks.support import common
from lingpipe.cluster import cluster_config
from lingpipe.devices import variable_placement
from lingpipe.input import hub_tokenizer
from lingpipe.keras_graph import hub_model

_NUM_LAYERS = flags.DEFINE_integer('num_layers', 34, 'Decoder layers of the model.', lower_bound=2)
_WIDTH = flags.DEFINE_integer('width', 1024, 'Its width, a multiple of 16.', lower_bound=16)
_VOCAB_SIZE = flags.DEFINE_integer('vocab_size', 32_000, 'Its vocabulary.', lower_bound=16)
_NUM_HEADS, _SEQUENCE_LENGTH = 16, 16
_SECONDS_BETWEEN_LOOKS = 0.005
_MIB = 2**20
_HEADER = ['process', 'share of the weights MiB', 'peak MiB', 'peak over share MiB']


def make_preset(folder):
    """Writes a preset of the Llama architecture, a file a layer, without ever holding more than that.

    Args:
        folder: `pathlib.Path` of a folder that is there.
    """
    from safetensors.numpy import save_file
    width, hidden = _WIDTH.value, 3 * _WIDTH.value
    square, wide = [width, width], [hidden, width]
    files = [{'model.embed_tokens.weight': [_VOCAB_SIZE.value, width], 'model.norm.weight': [width]}]
    files += [{f'model.layers.{layer}.{name}.weight': shape for name, shape in (
        ('input_layernorm', [width]), ('post_attention_layernorm', [width]), ('self_attn.q_proj', square),
        ('self_attn.k_proj', square), ('self_attn.v_proj', square), ('self_attn.o_proj', square),
        ('mlp.gate_proj', wide), ('mlp.up_proj', wide), ('mlp.down_proj', wide[::-1]))}
        for layer in range(_NUM_LAYERS.value)]
    places, random = {}, np.random.default_rng(0)
    for number, shapes in enumerate(files):
        name = f'model-{number:05d}.safetensors'
        save_file({key: random.standard_normal(shape, np.float32) for key, shape in shapes.items()}, folder / name)
        places.update(dict.fromkeys(shapes, name))
    (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': places}))
    (folder / 'config.json').write_text(json.dumps({
        'model_type': 'llama', 'vocab_size': _VOCAB_SIZE.value, 'num_hidden_layers': _NUM_LAYERS.value,
        'num_attention_heads': _NUM_HEADS, 'num_key_value_heads': _NUM_HEADS, 'hidden_size': width,
        'intermediate_size': hidden, 'tie_word_embeddings': True, 'rope_theta': 10_000.0}))


def work(addresses, index):
    """Lends the CPU of this process to the cluster.

    Yields:
        None, once it can be reached.
    """
    server = tf.distribute.Server(tf.train.ClusterSpec(addresses), job_name='worker', task_index=index)
    yield
    server.join()


def load(addresses, folder, has_weights):
    """Builds the pipeline on the workers and, `has_weights`, loads the preset's weights into it.

    Yields:
        None when the workers answer; then, for each partition, the bytes of its weights, and of its largest layer.
    """
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(addresses), job_name='chief', task_index=0)
    hub_tokenizer.import_keras_hub()
    tf.zeros([]).numpy()
    yield
    model = hub_model.KerasHubModel.Params().Set(preset=folder, head='causal_lm', load_weights=has_weights)
    devices = [f'/job:worker/replica:0/task:{index}/device:CPU:0' for index in range(len(addresses['worker']))]
    pipe = lingpipe.GPipeLayer.Params().Set(name='body', model=model, num_partitions=len(devices), devices=devices)
    pipe = pipe.Instantiate()
    shape, found = [1, _SEQUENCE_LENGTH], []
    pipe.build_from_specs({'token_ids': tf.TensorSpec(shape, tf.int32), 'padding_mask': tf.TensorSpec(shape, tf.bool)})
    for device in devices:
        variables = [variable for variable in pipe.model.weights if variable_placement.device_of(variable) == device]
        layers = [layer for stage in pipe.stages if stage.device == device for layer in stage.layers]
        found.append([_num_bytes(variables), max(_num_bytes(layer.weights) for layer in layers)])
    yield found


def _num_bytes(variables):
    return sum(4 * math.prod(variable.shape) for variable in variables)


class Watch:
    """Watches the memory of processes until it is asked for the peaks.

    Args:
        pids: list of process ids.
    """

    def __init__(self, pids):
        self._pids, self._stopping = pids, threading.Event()
        self._start = [_anonymous_memory(pid) for pid in pids]
        self._most = list(self._start)
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self):
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(_SECONDS_BETWEEN_LOOKS)
            self._most = [max(most, _anonymous_memory(pid)) for most, pid in zip(self._most, self._pids)]

    def peaks(self):
        """Returns for each process the most bytes that it had beyond those at the start."""
        self._stopping.set()
        self._thread.join()
        return [most - start for most, start in zip(self._most, self._start)]


def _anonymous_memory(pid):
    status = pathlib.Path(f'/proc/{pid}/status').read_text()
    return 1024 * int(re.search(r'RssAnon:\s*(\d+)', status).group(1))


def measure(folder, has_weights=True):
    """Returns for each partition its bytes and those of its largest layer, and the peaks of chief and workers."""
    found = cluster_config.free_addresses(3)
    addresses = {'chief': found[:1], 'worker': found[1:]}
    with common.Process(work, addresses, 0) as first, common.Process(work, addresses, 1) as second, \
            common.Process(load, addresses, str(folder), has_weights) as chief:
        for process in (first, second, chief):
            process.next()
        watch = Watch([process.pid for process in (chief, first, second)])
        try:
            parts = chief.next()
        finally:
            peaks = watch.peaks()
    return parts, peaks


def main(unused_argv):
    with tempfile.TemporaryDirectory() as folder:
        make_preset(pathlib.Path(folder))
        parts, peaks = measure(folder)
        (graph_bytes, *_) = measure(folder, has_weights=False)[1]
    shares = [0, *(num_bytes for num_bytes, _ in parts)]
    rows = [[name, f'{share / _MIB:,.0f}', f'{peak / _MIB:,.0f}', f'{(peak - share) / _MIB:,.0f}']
            for name, share, peak in zip(['chief', 'worker 0', 'worker 1'], shares, peaks)]
    rows.insert(1, ['chief, of a pipeline without the weights of a preset', '0', *[f'{graph_bytes / _MIB:,.0f}'] * 2])
    largest = max(largest for _, largest in parts)
    common.report(common.markdown_table(_HEADER, rows),
                  f'{sum(shares) / 4e6:,.0f} million parameters, {sum(shares) / _MIB:,.0f} MiB; the largest layer has '
                  f'{largest / _MIB:,.0f} MiB.')


if __name__ == '__main__':
    app.run(main)
