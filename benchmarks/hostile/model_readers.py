"""Files that hold models: those of Keras, presets of KerasHub, and folders of Hugging Face."""

import io
import json
import os
import zipfile

import keras
import numpy as np
import tensorflow as tf

from benchmarks.hostile import mutations
from benchmarks.hostile.readers import DEEP, Reader, get, labelled, put, special_files
from lingpipe.input import hub_tokenizer
from lingpipe.keras_graph import hub_model, model_source
from tests.input import hub_presets


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


def _rewritten(folder, change, compression=zipfile.ZIP_STORED):
    """Returns an attack on the Keras file of a folder."""
    return lambda: mutations.rewrite_archive(os.path.join(folder, 'model.keras'), change, compression)


def _with_config(folder, change):
    def apply(files):
        config = json.loads(files['config.json'])
        change(config)
        files['config.json'] = json.dumps(config).encode()
    return _rewritten(folder, apply)


def _keras_attacks(folder, target):
    def dense(config):
        return config['config']['layers'][1]

    def with_units(units):
        return _with_config(folder, lambda config: dense(config)['config'].update(units=units))

    def bomb(name, size):
        return _rewritten(folder, lambda files: files.update({name: bytes(size)}), zipfile.ZIP_DEFLATED)

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
        'an array of 4 TB': _rewritten(folder, with_a_huge_array),
        'names elsewhere': _rewritten(folder, lambda files: files.update(
            {'../../outside/precious': b'x', 'assets/../../../outside/precious': b'x', str(target): b'x'})),
        'nested': _rewritten(folder, lambda files: files.update({'config.json': b'[' * DEEP})),
        'nested layers': _rewritten(folder, lambda files: files.update({'config.json': _nested(DEEP)})),
        'without weights': _rewritten(folder, lambda files: files.pop('model.weights.h5')),
        **special_files('model.keras')(folder, target)}


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
            tree = json.loads(get(folder, name))
            change(tree)
            put(folder, name, json.dumps(tree))
        return apply

    def set_backbone(**fields):
        return config(lambda tree: tree['config'].update(fields))

    def shards(*names):
        def apply():
            os.remove(os.path.join(folder, 'model.weights.h5'))
            put(folder, 'model.weights.json', json.dumps({'weight_map': {'/a': list(names)}}))
        return apply

    def link(name):
        def apply():
            os.remove(os.path.join(folder, name))
            os.symlink(os.path.join(os.path.dirname(target), 'precious'), os.path.join(folder, name))
        return apply

    attacks = {f'config {n}': lambda attack=attack: put(folder, 'config.json', json.dumps(
        {'registered_name': None, **attack})) for n, attack in enumerate(mutations.attacks_on_keras(target))}
    attacks |= {f'task {n}': config(lambda tree, attack=attack: tree['config'].update(x=attack), 'task.json')
                for n, attack in enumerate(mutations.attacks_on_keras(target))}
    return attacks | {
        'a huge model': set_backbone(vocabulary_size=10**12), 'a large model': set_backbone(hidden_dim=10**6),
        'many layers': set_backbone(num_layers=10**9), 'layers that are no number': set_backbone(num_layers='many'),
        'shards elsewhere': shards('../../outside/precious'), 'shards of an absolute path': shards(str(target)),
        'shards that are no names': shards(None, 3), 'a link elsewhere': link('model.weights.h5'),
        'a config elsewhere': link('config.json'), 'a vocabulary elsewhere': link('assets/tokenizer/vocabulary.json'),
        'a token of a huge number': lambda: put(
            folder, 'assets/tokenizer/vocabulary.json', '{"a": 1000000000000, "!": 0, "<|endoftext|>": 1}'),
        **labelled('config', special_files('config.json')(folder, target)),
        **labelled('weights', special_files('model.weights.h5')(folder, target)),
        **labelled('vocabulary', special_files('assets/tokenizer/vocabulary.json')(folder, target)),
        **labelled('merges', special_files('assets/tokenizer/merges.txt')(folder, target))}


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
    put(folder, 'model-00001-of-00001.safetensors', safetensors.save(tensors))
    put(folder, 'config.json', json.dumps(_HUGGING_FACE_CONFIG))
    put(folder, 'model.safetensors.index.json', json.dumps({
        'metadata': {'total_size': 1}, 'weight_map': dict.fromkeys(tensors, 'model-00001-of-00001.safetensors')}))


def _hugging_face_attacks(folder, target):
    def mapped(name):
        def apply():
            tree = json.loads(get(folder, 'model.safetensors.index.json'))
            tree['weight_map'] = dict.fromkeys(tree['weight_map'], name)
            put(folder, 'model.safetensors.index.json', json.dumps(tree))
        return apply

    def set_config(**fields):
        return lambda: put(folder, 'config.json', json.dumps(_HUGGING_FACE_CONFIG | fields))

    return {
        'shards elsewhere': mapped('../../outside/precious'), 'an absolute shard': mapped(str(target)),
        'a shard that is no name': mapped(None), 'a huge vocabulary': set_config(vocab_size=10**12),
        'a wide model': set_config(n_embd=10**8), 'many layers': set_config(n_layer=10**9),
        'another type': set_config(model_type='stranger'), 'a type that is no name': set_config(model_type={'a': 1}),
        'code': set_config(auto_map={'AutoModel': 'stranger.Touch'}, trust_remote_code=True),
        **labelled('index', special_files('model.safetensors.index.json')(folder, target)),
        **labelled('tensors', special_files('model-00001-of-00001.safetensors')(folder, target))}


READERS = {
    'Keras file': Reader(_write_keras, _read_keras, _keras_attacks),
    'preset': Reader(hub_presets.gpt2, _read_preset, _preset_attacks),
    'tokenizer of a preset': Reader(hub_presets.gpt2, _read_tokenizer, _preset_attacks),
    'Hugging Face folder': Reader(_write_hugging_face, _read_preset, _hugging_face_attacks)}
