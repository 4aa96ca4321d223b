"""Files that people write: params, clusters, schedules, records and prompts."""

import json
import os

from absl import app, flags

from benchmarks.hostile.readers import DEEP, LONG, Reader, get_text, put, special_files, texts
from lingpipe import hyperparams, schedules
from lingpipe.cluster import cluster_config
from lingpipe.command_line import command, run_flags
from lingpipe.input import instruction_input, text_records, tfds_builders, tokenization
from lingpipe.partition import layer_layout
from params import linear_regression


def experiment_params():
    experiment = linear_regression.EightWeights()
    params = experiment.Model()
    params.Define('input', experiment.Train(), '')
    return params


_PARAMS_ATTACKS = (
    'train.learning_rate : 0x' + 'f' * 5000, 'train.max_steps : ' + '9' * 5000, 'train.learning_rate : ' + '9' * 400,
    'train.max_steps : 1' + '_0' * 50_000, 'task.name : ' + '[' * DEEP, 'task.body.devices : ' + '(' * DEEP,
    'task.body.cls : type/os/system', 'task.cls : type/stranger/Touch', 'task.cls : stranger.Touch',
    "task.name : __import__('os').system('touch {target}')", 'train.optimizer.cls : type/builtins/eval',
    'task' + '.body' * 50_000 + ' : 1', 'task.body.layers[999999999].units : 1', 'task.body.devices[-1] : 1',
    'train.max_steps : ' + 'a' * LONG, 'a' * LONG + ' : 1', '\n'.join(f'x{n} : 1' for n in range(3000)),
    "task.name : '" + '\\' * 99_999 + "'", 'task.name : "' + 'a' * LONG, '#' * LONG, ';' * LONG, ' ' * LONG + 'x',
    'task.body.layers : [' + '1,' * 500_000 + ']', 'task.body.devices : {' + '{}:1,' * 10 + '}',
    'train.learning_rate : dtype/S99999999999', 'task.dtype_policy : dtype/V99999999999')


def _read_params(folder):
    experiment_params().FromText(command._read(os.path.join(folder, 'params.txt')))


def _read_overrides(folder):
    hyperparams.ApplyOverrides(experiment_params(), command._read(os.path.join(folder, 'params.txt')))


def _read_typed(folder):
    experiment_params().FromTextWithTypes(command._read(os.path.join(folder, 'params.txt')))


_SHAPES = '{name}\n\n\ntask.body.layers : {shape}\n'
_OWN = '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n'
_PYTORCH = ('0F0,0SEND_F0,0F1,0SEND_F1,,0RECV_B0,0B0,0RECV_B1,0B1\n'
            ',0RECV_F0,1F0,1SEND_B0,1B0,0RECV_F1,1F1,1B1,1SEND_B1\n').replace('0RECV_F', '1RECV_F')
_SCHEDULE_ATTACKS = (
    '999999999999F999999999999', '0F' + '9' * 5000, '9' * 5000 + 'F0', 'F0,B0,' * 300_000, 'F0,B0\n' * 150_000,
    '"' + 'F0,' * LONG, '\0', '(' * DEEP, '(0F0;' * DEEP + ')OVERLAP_F_B', 'F0\n' + ',' * LONG,
    ','.join(f'F{n}' for n in range(100_000)), '0F0,' * 3 + 'x' * LONG)


def _read_layout(folder):
    layer_layout.partition_ends(get_text(folder, 'layout.txt'), 4, 2)


def _layout_attacks(folder, unused_target):
    """Without special files: a layout is a text in the params."""
    return {f'text {n}': lambda text=text: put(folder, 'layout.txt', text) for n, text in enumerate((
        't*999999999999', '((((t*99999)*99999)*99999)*99999)*99999', 't*' + '9' * 5000, '(' * DEEP, '|' * LONG,
        't*2' * DEEP, 't' * LONG, '(t|)*9999999', '(t)*3' * 20_000, 'x' * LONG))}


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
        put(folder, f'strange/1.0.0/{name}', content)


_TFDS_FILES = {
    'dataset_info.json': json.dumps({
        'name': 'strange', 'version': '1.0.0', 'fileFormat': 'tfrecord', 'splits': [
            {'name': 'train', 'shardLengths': ['1'], 'numBytes': '10', 'filepathTemplate':
             '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}'}]}),
    'features.json': json.dumps({
        'pythonClassName': 'tensorflow_datasets.core.features.features_dict.FeaturesDict',
        'featuresDict': {'features': {
            'text': {'pythonClassName': 'tensorflow_datasets.core.features.text_feature.Text', 'text': {}}}}})}


def _tfds_attacks(folder, target):
    def feature(**content):
        return lambda: put(folder, 'strange/1.0.0/features.json', json.dumps(content))

    return {
        'another module': feature(pythonClassName='stranger.Touch', text={}),
        'an inner module': feature(pythonClassName='tensorflow_datasets.core.features.features_dict.FeaturesDict',
                                   featuresDict={'features': {'a': {'pythonClassName': 'stranger.Touch', 'text': {}}}}),
        'the old form': feature(type='stranger.Touch', content={}),
        **special_files('strange/1.0.0/features.json')(folder, target)}


_FIELD_ERRORS = (ValueError, AttributeError, IndexError)
READERS = {
    'params': Reader(
        lambda folder: put(folder, 'params.txt', experiment_params().ToText()), _read_params,
        texts('params.txt', *_PARAMS_ATTACKS), _FIELD_ERRORS),
    'overrides': Reader(
        lambda folder: put(
            folder, 'params.txt', 'train.max_steps=3; task.body.num_partitions=1; train.learning_rate=.1'),
        _read_overrides, texts('params.txt', *(text.replace(' : ', '=') for text in _PARAMS_ATTACKS)), _FIELD_ERRORS),
    'params with types': Reader(
        lambda folder: put(folder, 'params.txt', experiment_params().ToTextWithTypes()), _read_typed,
        texts('params.txt', *(_SHAPES.format(name='train.max_steps : 1', shape=shape) for shape in (
            'list[999999999]', 'tuple[' + '9' * 5000 + ']', 'dict[' + '[' * DEEP + ']', 'numpy.int8', 'numpy.ndarray',
            'numpy.str_', 'type/os/system'))), _FIELD_ERRORS),
    'cluster': Reader(
        lambda folder: put(folder, 'cluster.json', cluster_config.ClusterConfig(
            {'chief': ['a:1'], 'worker': ['b:2']}, 'worker', 0).to_json()),
        lambda folder: cluster_config.read(os.path.join(folder, 'cluster.json'), {}, mode='pipeline'),
        texts('cluster.json', '{"cluster": {"worker": ["$(touch {target}):1"]}}',
              '{"cluster": {"worker": [' + '"a:1",' * 500_000 + '"a:1"]}}', '{"cluster": ' + '9' * 5000 + '}',
              '{"' + 'a' * LONG + '": 1}', '{' + ','.join(f'"a{n}": 1' for n in range(100_000)) + '}',
              '{"cluster": {"worker": [' + ','.join(f'"a:{n}"' for n in range(1, 60_000)) + ']}}')),
    'schedule': Reader(
        lambda folder: put(folder, 'schedule.csv', _OWN),
        lambda folder: schedules.from_csv(os.path.join(folder, 'schedule.csv')),
        texts('schedule.csv', *_SCHEDULE_ATTACKS)),
    'schedule of PyTorch': Reader(
        lambda folder: put(folder, 'schedule.csv', _PYTORCH),
        lambda folder: schedules.from_csv(os.path.join(folder, 'schedule.csv'))),
    'layout of Megatron': Reader(
        lambda folder: put(folder, 'layout.txt', 'Et|tL'), _read_layout, _layout_attacks),
    'JSON lines': Reader(
        lambda folder: put(folder, 'records.jsonl', _JSON_LINES), _read_records('records.jsonl'),
        texts('records.jsonl', '{"prompt": ' + '9' * 5000 + ', "response": "a"}', '{"prompt": "a", "weight": '
              + '9' * 400 + ', "response": "a"}', json.dumps({'prompt': 'a' * LONG, 'response': 'b', 'weight': 1}),
              '{' + ','.join(f'"p{n}": 1' for n in range(100_000)) + '}', '{"' + 'prompd' * 500_000 + '": 1}',
              '{"prompt": ' + '[' * 900 + ']' * 900 + '}')),
    'CSV': Reader(
        lambda folder: put(folder, 'records.csv', _CSV), _read_records('records.csv'),
        texts('records.csv', ',' * LONG, '"' * LONG, 'prompt,response,weight\n' + '"a\n' * 500_000,
              ','.join(f'a{n}' for n in range(100_000)) + '\n1', '=cmd|"/c calc"!A1,b,c\n1,2,3')),
    'text files': Reader(lambda folder: put(folder, 'a/b.txt', 'text'), _read_text_folder, special_files('a/b.txt')),
    'prompts': Reader(lambda folder: put(folder, 'prompts.txt', 'one\ntwo\n'), _read_prompts,
                      special_files('prompts.txt'), (app.UsageError,)),
    'TFDS': Reader(_write_tfds, lambda folder: tfds_builders.find_builder('strange', folder), _tfds_attacks)}
