"""Every kind of file that LingPipe reads: a good one, what reads it, and attacks by hand."""

import dataclasses
import io
import json
import os
import zipfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.hostile import mutations
from lingpipe import hyperparams, schedules
from lingpipe.cluster import cluster_config
from lingpipe.command_line import command, run_flags
from lingpipe.input import hub_tokenizer, instruction_input, text_records, tfds_builders, tokenization
from lingpipe.keras_graph import hub_model, model_source
from lingpipe.partition import layer_layout, layer_profile
from lingpipe.tools.report import curves
from lingpipe.training import checkpoint_contents, checkpointing, checkpoints, errors, logdir, progress
from params import linear_regression
from tests.input import hub_presets

_DEEP, _LONG = 100_000, 3_000_000


@dataclasses.dataclass(frozen=True)
class Reader:
    """What reads a kind of file.

    Attributes:
        write: function of a folder, an empty one, which puts good files into it.
        read: function of the folder, which reads them as a user would.
        attacks: function of the folder with good files, and of a path that must not come to be: {name: function that
            changes the folder}.
        errors: classes of its documented errors.
    """

    write: Callable[[str], Any]
    read: Callable[[str], Any]
    attacks: Callable[[str, str], dict[str, Callable[[], Any]]] = lambda folder, target: {}
    errors: tuple[type[Exception], ...] = (ValueError,)


def _put(folder, name, content):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def _get(folder, name):
    with open(os.path.join(folder, name), 'rb') as file:
        return file.read()


def _text(folder, name):
    return _get(folder, name).decode('utf-8', errors='replace')


def _special_files(name):
    """Attacks that any file of a folder may turn out to be."""
    def attacks(folder, target):
        path = os.path.join(folder, name)

        def replaced(make):
            def change():
                os.remove(path)
                make()
            return change

        return {
            'a pipe': replaced(lambda: os.mkfifo(path)), 'a device without an end': replaced(
                lambda: os.symlink('/dev/zero', path)),
            'a folder': replaced(lambda: os.mkdir(path)), 'empty': lambda: _put(folder, name, b''),
            'a GiB of nothing': lambda: os.truncate(path, 2**30), 'zeros': lambda: _put(folder, name, bytes(_LONG)),
            'nested lists': lambda: _put(folder, name, '[' * _DEEP),
            'nested dicts': lambda: _put(folder, name, '{"a":' * _DEEP),
            'a long line': lambda: _put(folder, name, 'a' * _LONG),
            'a long number': lambda: _put(folder, name, '9' * _LONG),
            'many lines': lambda: _put(folder, name, 'a,b\n' * (_LONG // 6)),
            'not UTF-8': lambda: _put(folder, name, bytes(range(128, 256)))}
    return attacks


def _texts(name, *contents):
    """Attacks of some texts, in which {target} is the path that must not come to be."""
    def attacks(folder, target):
        return {f'text {number}': lambda content=content: _put(folder, name, content.replace('{target}', str(target)))
                for number, content in enumerate(contents)} | _special_files(name)(folder, target)
    return attacks


# ---- params ---------------------------------------------------------------------------------------------------------


def _params():
    experiment = linear_regression.EightWeights()
    params = experiment.Model()
    params.Define('input', experiment.Train(), '')
    return params


_PARAMS_ATTACKS = (
    'train.learning_rate : 0x' + 'f' * 5000, 'train.max_steps : ' + '9' * 5000, 'train.learning_rate : ' + '9' * 400,
    'train.max_steps : 1' + '_0' * 50_000, 'task.name : ' + '[' * _DEEP, 'task.body.devices : ' + '(' * _DEEP,
    'task.body.cls : type/os/system', 'task.cls : type/stranger/Touch', 'task.cls : stranger.Touch',
    "task.name : __import__('os').system('touch {target}')", 'train.optimizer.cls : type/builtins/eval',
    'task' + '.body' * 50_000 + ' : 1', 'task.body.layers[999999999].units : 1', 'task.body.devices[-1] : 1',
    'train.max_steps : ' + 'a' * _LONG, 'a' * _LONG + ' : 1', '\n'.join(f'x{n} : 1' for n in range(3000)),
    "task.name : '" + '\\' * 99_999 + "'", 'task.name : "' + 'a' * _LONG, '#' * _LONG, ';' * _LONG, ' ' * _LONG + 'x',
    'task.body.layers : [' + '1,' * 500_000 + ']', 'task.body.devices : {' + '{}:1,' * 10 + '}',
    'train.learning_rate : dtype/S99999999999', 'task.dtype_policy : dtype/V99999999999')


def _read_params(folder):
    _params().FromText(command._read(os.path.join(folder, 'params.txt')))


def _read_overrides(folder):
    hyperparams.ApplyOverrides(_params(), command._read(os.path.join(folder, 'params.txt')))


def _read_typed(folder):
    _params().FromTextWithTypes(command._read(os.path.join(folder, 'params.txt')))


_SHAPES = '{name}\n\n\ntask.body.layers : {shape}\n'


# ---- schedules ------------------------------------------------------------------------------------------------------


_OWN = '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n'
_PYTORCH = ('0F0,0SEND_F0,0F1,0SEND_F1,,0RECV_B0,0B0,0RECV_B1,0B1\n'
            ',0RECV_F0,1F0,1SEND_B0,1B0,0RECV_F1,1F1,1B1,1SEND_B1\n').replace('0RECV_F', '1RECV_F')
_SCHEDULE_ATTACKS = (
    '999999999999F999999999999', '0F' + '9' * 5000, '9' * 5000 + 'F0', 'F0,B0,' * 300_000, 'F0,B0\n' * 150_000,
    '"' + 'F0,' * _LONG, '\0', '(' * _DEEP, '(0F0;' * _DEEP + ')OVERLAP_F_B', 'F0\n' + ',' * _LONG,
    ','.join(f'F{n}' for n in range(100_000)), '0F0,' * 3 + 'x' * _LONG)


def _read_layout(folder):
    layer_layout.partition_ends(_text(folder, 'layout.txt'), 4, 2)


# ---- checkpoints and the log directory ------------------------------------------------------------------------------


def _write_checkpoints(folder):
    state = checkpoint_contents.nested(_variables())
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**state), folder, 2, checkpoint_name='ckpt')
    for step in (1, 2):
        manager.save(checkpoint_number=step)


def _variables():
    return {'global_step': tf.Variable(1), 'model/dense/kernel': tf.Variable(tf.ones([3, 4]))}


def _read_checkpoints(folder):
    def read(path):
        shapes = checkpoint_contents.stored_shapes(path)
        pairs = [(name, variable) for name, variable in _variables().items()
                 if shapes.get(name) == list(variable.shape)]
        checkpoint_contents.read_variables(path, pairs)

    checkpoints.read_newest(folder, read)
    checkpoints.leave_out(folder, [os.path.join(folder, 'ckpt-1')])


def _checkpoint_attacks(folder, target):
    def links_elsewhere():
        os.remove(os.path.join(folder, 'checkpoint'))
        os.symlink(target, os.path.join(folder, 'checkpoint'))

    def many_names():
        lines = ''.join(f'all_model_checkpoint_paths: "ckpt-{n}"\n' for n in range(50_000))
        _put(folder, 'checkpoint', f'model_checkpoint_path: "ckpt-2"\n{lines}')

    return {
        'a list of many': many_names, 'a list elsewhere': links_elsewhere,
        'names elsewhere': lambda: _put(folder, 'checkpoint', 'model_checkpoint_path: "../../outside/precious"'),
        'a name without a step': lambda: _put(folder, 'checkpoint', 'model_checkpoint_path: "ckpt-"'),
        'a name of a digit': lambda: _put(folder, 'checkpoint', 'model_checkpoint_path: "ckpt-٣"'),
        **{f'index: {name}': change for name, change in _special_files('ckpt-2.index')(folder, target).items()},
        **{f'data: {name}': change for name, change in
           _special_files('ckpt-2.data-00000-of-00001')(folder, target).items()},
        **{f'list: {name}': change for name, change in _special_files('checkpoint')(folder, target).items()}}


def _write_logdir(folder):
    run = logdir.LogDir(folder)
    run.create()
    tf.io.gfile.makedirs(run.best)
    run.write_best(3, 'accuracy', .5)
    run.write_left_out(['worker:1'], 4)
    run.write_control('a : 1', 'analysis')
    with run.lock():
        pass
    _write_checkpoints(run.train)


def _read_logdir(folder):
    run = logdir.LogDir(folder)
    run.create()
    with run.lock():
        run.read_best()
        run.read_params()
        run.read_left_out()
        run.write_best(4, 'accuracy', .6)
        run.write_control('a : 2', 'analysis')
        checkpointing.Checkpointer(run.train, _Program()).save()


class _Program:
    """As much of a `TrainProgram` as a checkpoint holds."""

    def __init__(self):
        self.global_step = tf.Variable(3, dtype=tf.int64)
        self.named_variables = {'dense/kernel': keras.Variable(np.ones([3, 4]))}
        self.optimizer, self.average = keras.optimizers.SGD(), None


def _logdir_attacks(folder, target):
    outside = os.path.dirname(target)

    def link(name, to):
        def change():
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                os.rename(path, f'{path}.old')
            elif os.path.exists(path):
                os.remove(path)
            os.symlink(to, path)
        return change

    precious = os.path.join(outside, 'precious')
    return {
        **{f'{name} is a link': link(name, precious) for name in (
            'control/lock', 'control/params.txt', 'control/params.txt.new', 'control/model_analysis.txt.new',
            'best/best.json', 'best/best.json.new', 'train/checkpoint', 'train/ckpt-3.index',
            'train/ckpt-3.data-00000-of-00001')},
        **{f'{name} is a link to a folder': link(name, outside) for name in (
            'train', 'best', 'control', 'train/ckpt-7_temp', 'train/ckpt-3_temp')},
        **{f'{name} is a link to nothing': link(name, target) for name in (
            'control/lock', 'control/params.txt.new', 'best/best.json.new', 'train/checkpoint')},
        **{f'best.json: {name}': change for name, change in _texts(
            'best/best.json', '{"value": "os.system"}', '{"value": NaN}', '[]', '{}', '{"value": 1' + '0' * 400 + '}')(
                folder, target).items()},
        **{f'left_out.json: {name}': change for name, change in _texts(
            'control/left_out.json', '{"left_out": 3, "num_devices": 1}', '{"left_out": [], "num_devices": "a"}', '[]')(
                folder, target).items()},
        **{f'lock: {name}': change for name, change in _special_files('control/lock')(folder, target).items()}}


def _write_curves(folder):
    """Writes curves, to a file whose name is known."""
    curve = progress.SummaryWriter(folder)
    for step in range(3):
        curve.scalars(step, {'loss': step / 3})
    curve.text('sample', 'a text', 3)
    curve.flush()
    written, = (name for name in os.listdir(folder) if '.tfevents.' in name)
    os.rename(os.path.join(folder, written), os.path.join(folder, 'events.out.tfevents.1.here'))


def _write_times(folder):
    key = layer_profile.Key('layer', 'inputs', 'CPU', 'float32', '2.21')
    layer_profile.write_times(folder, {key: (.1, .2, .3)})


_TIMES = '[{"key": {"layer": "a", "inputs": "b", "device": "c", "dtype_policy": "d", "tensorflow": "e"}, "seconds": %s}]'


# ---- texts ----------------------------------------------------------------------------------------------------------


_JSON_LINES = ''.join(json.dumps({'prompt': f'say {n}', 'response': 'a b', 'weight': n}) + '\n' for n in range(4))
_CSV = 'prompt,response,weight\nsay,a b,1\n"say ""b""","c\nd",2\n'


def _read_records(name):
    def read(folder):
        instruction_input.InstructionInput.Params().Set(
            name='x', files=os.path.join(folder, name), prompt_field='prompt', response_field='response',
            weight_field='weight', tokenizer=tokenization.ByteTokenizer.Params(), sequence_length=32, batch_size=1,
            bad_records='skip').Instantiate()
    return read


def _read_text_folder(folder):
    list(text_records.from_files(folder))


_PROMPTS = flags.FlagValues()
flags.DEFINE_string('prompt', None, '', flag_values=_PROMPTS)
flags.DEFINE_string('prompt_file', None, '', flag_values=_PROMPTS)
_PROMPTS.mark_as_parsed()


def _read_prompts(folder):
    _PROMPTS.prompt_file = os.path.join(folder, 'prompts.txt')
    run_flags.prompts(_PROMPTS)


def _write_tfds(folder):
    for name, content in _TFDS_FILES.items():
        _put(folder, f'strange/1.0.0/{name}', content)


_TFDS_FILES = {
    'dataset_info.json': json.dumps({
        'name': 'strange', 'version': '1.0.0', 'fileFormat': 'tfrecord', 'splits': [
            {'name': 'train', 'shardLengths': ['1'], 'numBytes': '10', 'filepathTemplate':
             '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}'}]}),
    'features.json': json.dumps({
        'pythonClassName': 'tensorflow_datasets.core.features.features_dict.FeaturesDict', 'featuresDict': {'features': {
            'text': {'pythonClassName': 'tensorflow_datasets.core.features.text_feature.Text', 'text': {}}}}})}


def _tfds_attacks(folder, target):
    def feature(**content):
        return lambda: _put(folder, 'strange/1.0.0/features.json', json.dumps(content))

    return {
        'another module': feature(pythonClassName='stranger.Touch', text={}),
        'an inner module': feature(pythonClassName='tensorflow_datasets.core.features.features_dict.FeaturesDict',
                                   featuresDict={'features': {'a': {'pythonClassName': 'stranger.Touch', 'text': {}}}}),
        'the old form': feature(type='stranger.Touch', content={}),
        **_special_files('strange/1.0.0/features.json')(folder, target)}


# ---- models ---------------------------------------------------------------------------------------------------------


def _write_keras(folder):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, 'relu'), keras.layers.Dense(2)])
    model.save(os.path.join(folder, 'model.keras'))


def _read_keras(folder):
    source = model_source.ModelOfFile.Params().Set(model_file=os.path.join(folder, 'model.keras')).Instantiate()
    model = source.make()
    for variable in model.variables:
        if variable._value is None:
            variable._deferred_initialize()
    source.load_weights(model)


def _rewritten(folder, change, **compression):
    """Writes the archive again, after `change` of the dictionary of its files."""
    path = os.path.join(folder, 'model.keras')
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, 'w', **compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def _with_config(folder, change):
    def apply(files):
        config = json.loads(files['config.json'])
        change(config)
        files['config.json'] = json.dumps(config).encode()
    return lambda: _rewritten(folder, apply)


def _keras_attacks(folder, target):
    def dense(config):
        return config['config']['layers'][1]

    def with_units(units):
        return _with_config(folder, lambda config: dense(config)['config'].update(units=units))

    def bomb(name, size):
        def change():
            _rewritten(folder, lambda files: files.update({name: bytes(size)}), compression=zipfile.ZIP_DEFLATED)
        return change

    def with_a_huge_array(files):
        files['model.weights.h5'] = _h5({'layers/dense/vars/0': ((10**7, 10**5), 'gzip')})

    hostile = {f'layer {n}': _with_config(folder, lambda config, attack=attack: config['config']['layers'].insert(
        1, attack)) for n, attack in enumerate(mutations.attacks_on_keras(target))}
    hostile |= {f'activation {n}': _with_config(
        folder, lambda config, attack=attack: dense(config)['config'].update(activation=attack))
        for n, attack in enumerate(mutations.attacks_on_keras(target))}
    return hostile | {
        'a trillion units': with_units(10**12), 'a hundred million units': with_units(10**8),
        'negative units': with_units(-1), 'units that are no number': with_units('os.system'),
        'a huge input': _with_config(folder, lambda config: config['config']['layers'][0]['config'].update(
            batch_shape=[None, 10**12])),
        'a config that unpacks to 1 GiB': bomb('config.json', 2**30),
        'weights that unpack to 1 GiB': bomb('model.weights.h5', 2**30),
        'an array of 4 TB': lambda: _rewritten(folder, with_a_huge_array),
        'names elsewhere': lambda: _rewritten(folder, lambda files: files.update(
            {'../../outside/precious': b'x', 'assets/../../../outside/precious': b'x', str(target): b'x'})),
        'nested': lambda: _rewritten(folder, lambda files: files.update({'config.json': b'[' * _DEEP})),
        'nested layers': lambda: _rewritten(folder, lambda files: files.update({'config.json': _nested(_DEEP)})),
        'without weights': lambda: _rewritten(folder, lambda files: files.pop('model.weights.h5')),
        **_special_files('model.keras')(folder, target)}


def _nested(depth):
    return b'{"class_name": "a", "config": ' * depth + b'1' + b'}' * depth


def _h5(datasets):
    import h5py
    file = io.BytesIO()
    with h5py.File(file, 'w') as store:
        for name, (shape, compression) in datasets.items():
            store.create_dataset(name, shape, 'float32', compression=compression)
    return file.getvalue()


def _read_preset(folder):
    source = hub_model.KerasHubModel.Params().Set(preset=folder).Instantiate()
    model = source.make()
    for variable in model.variables:
        if variable._value is None:
            variable._deferred_initialize()
    source.load_weights(model)


def _read_tokenizer(folder):
    tokenizer = hub_tokenizer.KerasHubTokenizer.Params().Set(preset=folder).Instantiate()
    tokenizer.encode(tf.constant('a b'))
    tokenizer.num_bytes(tf.constant([0]))
    return tokenizer.start_ids


def _preset_attacks(folder, target):
    def config(change, name='config.json'):
        def apply():
            tree = json.loads(_get(folder, name))
            change(tree)
            _put(folder, name, json.dumps(tree))
        return apply

    def set_backbone(**fields):
        return config(lambda tree: tree['config'].update(fields))

    def shards(*names):
        def apply():
            os.remove(os.path.join(folder, 'model.weights.h5'))
            _put(folder, 'model.weights.json', json.dumps({'weight_map': {'/a': list(names)}}))
        return apply

    def link(name):
        def apply():
            os.remove(os.path.join(folder, name))
            os.symlink(os.path.join(os.path.dirname(target), 'precious'), os.path.join(folder, name))
        return apply

    attacks = {f'config {n}': lambda attack=attack: _put(folder, 'config.json', json.dumps(
        {'registered_name': None, **attack})) for n, attack in enumerate(mutations.attacks_on_keras(target))}
    attacks |= {f'task {n}': config(lambda tree, attack=attack: tree['config'].update(x=attack), 'task.json')
                for n, attack in enumerate(mutations.attacks_on_keras(target))}
    return attacks | {
        'a huge model': set_backbone(vocabulary_size=10**12), 'a large model': set_backbone(hidden_dim=10**6),
        'many layers': set_backbone(num_layers=10**9), 'layers that are no number': set_backbone(num_layers='many'),
        'shards elsewhere': shards('../../outside/precious'), 'shards of an absolute path': shards(str(target)),
        'shards that are no names': shards(None, 3), 'a link elsewhere': link('model.weights.h5'),
        'a config elsewhere': link('config.json'), 'a vocabulary elsewhere': link('assets/tokenizer/vocabulary.json'),
        'a token of a huge number': lambda: _put(
            folder, 'assets/tokenizer/vocabulary.json', '{"a": 1000000000000, "!": 0, "<|endoftext|>": 1}'),
        **{f'config: {name}': change for name, change in _special_files('config.json')(folder, target).items()},
        **{f'weights: {name}': change for name, change in _special_files('model.weights.h5')(folder, target).items()},
        **{f'vocabulary: {name}': change for name, change in
           _special_files('assets/tokenizer/vocabulary.json')(folder, target).items()},
        **{f'merges: {name}': change for name, change in
           _special_files('assets/tokenizer/merges.txt')(folder, target).items()}}


_HUGGING_FACE_CONFIG = {
    'model_type': 'gpt2', 'vocab_size': 8, 'n_positions': 16, 'n_embd': 8, 'n_layer': 1, 'n_head': 2, 'n_inner': 16,
    'resid_pdrop': 0.0, 'layer_norm_epsilon': 1e-5}


def _write_hugging_face(folder):
    from safetensors import numpy as safetensors
    shapes = {'wte.weight': [8, 8], 'wpe.weight': [16, 8], 'ln_f.weight': [8], 'ln_f.bias': [8]}
    for name, shape in {'ln_1.weight': [8], 'ln_1.bias': [8], 'ln_2.weight': [8], 'ln_2.bias': [8],
                        'attn.c_attn.weight': [8, 24], 'attn.c_attn.bias': [24], 'attn.c_proj.weight': [8, 8],
                        'attn.c_proj.bias': [8], 'mlp.c_fc.weight': [8, 32], 'mlp.c_fc.bias': [32],
                        'mlp.c_proj.weight': [32, 8], 'mlp.c_proj.bias': [8]}.items():
        shapes[f'h.0.{name}'] = shape
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    _put(folder, 'model-00001-of-00001.safetensors', safetensors.save(tensors))
    _put(folder, 'config.json', json.dumps(_HUGGING_FACE_CONFIG))
    _put(folder, 'model.safetensors.index.json', json.dumps({
        'metadata': {'total_size': 1}, 'weight_map': dict.fromkeys(tensors, 'model-00001-of-00001.safetensors')}))


def _hugging_face_attacks(folder, target):
    def mapped(name):
        def apply():
            tree = json.loads(_get(folder, 'model.safetensors.index.json'))
            tree['weight_map'] = dict.fromkeys(tree['weight_map'], name)
            _put(folder, 'model.safetensors.index.json', json.dumps(tree))
        return apply

    def set_config(**fields):
        return lambda: _put(folder, 'config.json', json.dumps(_HUGGING_FACE_CONFIG | fields))

    return {
        'shards elsewhere': mapped('../../outside/precious'), 'an absolute shard': mapped(str(target)),
        'a shard that is no name': mapped(None), 'a huge vocabulary': set_config(vocab_size=10**12),
        'a wide model': set_config(n_embd=10**8), 'many layers': set_config(n_layer=10**9),
        'another type': set_config(model_type='stranger'), 'a type that is no name': set_config(model_type={'a': 1}),
        'code': set_config(auto_map={'AutoModel': 'stranger.Touch'}, trust_remote_code=True),
        **{f'index: {name}': change for name, change in
           _special_files('model.safetensors.index.json')(folder, target).items()},
        **{f'tensors: {name}': change for name, change in
           _special_files('model-00001-of-00001.safetensors')(folder, target).items()}}


# ---- all ------------------------------------------------------------------------------------------------------------


_FIELD_ERRORS = (ValueError, AttributeError, IndexError)
_TRAINING_ERRORS = (errors.TrainingError, errors.DamagedCheckpointError)
READERS = {
    'params': Reader(
        lambda folder: _put(folder, 'params.txt', _params().ToText()), _read_params,
        _texts('params.txt', *_PARAMS_ATTACKS), _FIELD_ERRORS),
    'overrides': Reader(
        lambda folder: _put(folder, 'params.txt', 'train.max_steps=3; task.body.num_partitions=1; train.learning_rate=.1'),
        _read_overrides, _texts('params.txt', *(text.replace(' : ', '=') for text in _PARAMS_ATTACKS)), _FIELD_ERRORS),
    'params with types': Reader(
        lambda folder: _put(folder, 'params.txt', _params().ToTextWithTypes()), _read_typed,
        _texts('params.txt', *(_SHAPES.format(name='train.max_steps : 1', shape=shape) for shape in (
            'list[999999999]', 'tuple[' + '9' * 5000 + ']', 'dict[' + '[' * _DEEP + ']', 'numpy.int8', 'numpy.ndarray',
            'numpy.str_', 'type/os/system'))), _FIELD_ERRORS),
    'cluster': Reader(
        lambda folder: _put(folder, 'cluster.json', cluster_config.ClusterConfig(
            {'chief': ['a:1'], 'worker': ['b:2']}, 'worker', 0).to_json()),
        lambda folder: cluster_config.read(os.path.join(folder, 'cluster.json'), {}, mode='pipeline'),
        _texts('cluster.json', '{"cluster": {"worker": ["$(touch {target}):1"]}}',
               '{"cluster": {"worker": [' + '"a:1",' * 500_000 + '"a:1"]}}', '{"cluster": ' + '9' * 5000 + '}',
               '{"' + 'a' * _LONG + '": 1}', '{' + ','.join(f'"a{n}": 1' for n in range(100_000)) + '}',
               '{"cluster": {"worker": [' + ','.join(f'"a:{n}"' for n in range(1, 60_000)) + ']}}')),
    'schedule': Reader(
        lambda folder: _put(folder, 'schedule.csv', _OWN),
        lambda folder: schedules.from_csv(os.path.join(folder, 'schedule.csv')),
        _texts('schedule.csv', *_SCHEDULE_ATTACKS)),
    'schedule of PyTorch': Reader(
        lambda folder: _put(folder, 'schedule.csv', _PYTORCH),
        lambda folder: schedules.from_csv(os.path.join(folder, 'schedule.csv'))),
    'layout of Megatron': Reader(
        lambda folder: _put(folder, 'layout.txt', 'Et|tL'), _read_layout,
        lambda folder, target: {f'text {n}': lambda text=text: _put(folder, 'layout.txt', text) for n, text in enumerate((
            't*999999999999', '((((t*99999)*99999)*99999)*99999)*99999', 't*' + '9' * 5000, '(' * _DEEP, '|' * _LONG,
            't*2' * _DEEP, 't' * _LONG, '(t|)*9999999', '(t)*3' * 20_000, 'x' * _LONG))}),
    'layer times': Reader(_write_times, layer_profile.read_times, _texts(
        'layer_times.json', *(_TIMES % seconds for seconds in (
            '[1e999, 1, 1]', '[' + '9' * 400 + ', 1, 1]', '[' + '9' * 5000 + ', 1, 1]', '"os.system"', '[[1], 1, 1]')),
        '[{"key": {"__class__": "os.system"}, "seconds": [1, 1, 1]}]')),
    'checkpoints': Reader(_write_checkpoints, _read_checkpoints, _checkpoint_attacks, _TRAINING_ERRORS),
    'log directory': Reader(_write_logdir, _read_logdir, _logdir_attacks, _TRAINING_ERRORS),
    'curves': Reader(_write_curves, curves.read, _special_files('events.out.tfevents.1.here'), _TRAINING_ERRORS),
    'JSON lines': Reader(
        lambda folder: _put(folder, 'records.jsonl', _JSON_LINES), _read_records('records.jsonl'),
        _texts('records.jsonl', '{"prompt": ' + '9' * 5000 + ', "response": "a"}', '{"prompt": "a", "weight": ' + '9' * 400
               + ', "response": "a"}', json.dumps({'prompt': 'a' * _LONG, 'response': 'b', 'weight': 1}),
               '{' + ','.join(f'"p{n}": 1' for n in range(100_000)) + '}', '{"' + 'prompd' * 500_000 + '": 1}',
               '{"prompt": ' + '[' * 900 + ']' * 900 + '}')),
    'CSV': Reader(
        lambda folder: _put(folder, 'records.csv', _CSV), _read_records('records.csv'),
        _texts('records.csv', ',' * _LONG, '"' * _LONG, 'prompt,response,weight\n' + '"a\n' * 500_000,
               ','.join(f'a{n}' for n in range(100_000)) + '\n1', '=cmd|"/c calc"!A1,b,c\n1,2,3')),
    'text files': Reader(lambda folder: _put(folder, 'a/b.txt', 'text'), _read_text_folder, _special_files('a/b.txt')),
    'prompts': Reader(lambda folder: _put(folder, 'prompts.txt', 'one\ntwo\n'), _read_prompts,
                      _special_files('prompts.txt'), (app.UsageError,)),
    'TFDS': Reader(_write_tfds, lambda folder: tfds_builders.find_builder('strange', folder), _tfds_attacks),
    'Keras file': Reader(_write_keras, _read_keras, _keras_attacks),
    'preset': Reader(hub_presets.gpt2, _read_preset, _preset_attacks),
    'tokenizer of a preset': Reader(hub_presets.gpt2, _read_tokenizer, _preset_attacks),
    'Hugging Face folder': Reader(_write_hugging_face, _read_preset, _hugging_face_attacks)}
