"""The flags of the command, and the checks of their values."""

import os
import pathlib

from absl import app, flags, logging

from lingpipe.cluster import launchers
from lingpipe.command_line import topics

_FLAGS_OF_LANGUAGE_MODELS = ('num_tokens', 'temperature', 'top_k', 'top_p', 'seed')
_FLAGS_OF_CLUSTERS = ('cluster_spec', 'trusted_network', 'task')
_INSTEAD = {
    'checkpoint': ' To train from the weights of a checkpoint, set train.init_from_checkpoint, as in '
                  "--model_params_override='train.init_from_checkpoint=PATH'.",
    'steps': " To train for some steps, set train.max_steps, as in --model_params_override='train.max_steps=100'."}

flags.DEFINE_string(
    'model', None, "Model: a module of LingPipe ('params.amoebanet') or of the current folder ('my_model' for "
    "my_model.py), or a class in one ('params.amoebanet.X').")
flags.DEFINE_enum(
    'mode', 'train', list(topics.MODES), 'What to do; a mode as the first word does the same.')
flags.DEFINE_string(
    'logdir', None, 'Folder of checkpoints and curves, here or at gs://; training resumes from its newest checkpoint.')
flags.DEFINE_multi_string(
    'model_params_override', [], "Changes, such as 'train.max_steps=100; task.body.num_partitions=4; "
    "input.batch_size=64; test.batch_size=50'")
flags.DEFINE_multi_string(
    'model_params_file_override', [], 'File of changes, one per line')
flags.DEFINE_enum(
    'device', 'auto', ['auto', 'cpu', 'gpu', 'tpu'], 'Devices of the partitions; auto: accelerators, else the CPU.')
flags.DEFINE_string(
    'tpu', None, "With --device=tpu: name of a Cloud TPU; 'local', the default, for that of this machine; or 'slice' "
    'for all hosts of a slice, each of which runs this command.')
flags.DEFINE_string(
    'checkpoint', None, 'Checkpoint to evaluate, export, generate or predict with; the newest of --logdir otherwise.')
flags.DEFINE_bool(
    'follow', False, 'Evaluate new checkpoints of a training run as they come. Of several that are written during an '
    'evaluation, only the newest is evaluated.')
flags.DEFINE_string('accelerator', None, "Accelerator to plan for, such as 'v3', 'v5e' or 'a100'.")
flags.DEFINE_string('device_memory', None, "Memory of a device, such as '16GiB'; by default the accelerator's.")
flags.DEFINE_integer(
    'num_devices', None, "How many devices 'auto' may use; by default as many as the model needs.", lower_bound=1)
flags.DEFINE_bool('compile', False, 'Also compile the programs of each device for a TPU; no TPU is needed.')
flags.DEFINE_string('tpu_topology', 'v5e:2x2', "With --compile: the TPUs to compile for, such as 'v3:2x2'.")
flags.DEFINE_bool(
    'dry_run', False, 'Build the model, read a batch of every input, show the plan, and end without a step. --logdir '
    'is not needed.')
flags.DEFINE_integer('steps', 3, 'How many training steps to record.', lower_bound=1)
flags.DEFINE_string(
    'input', None, "A file or a folder of images or of records of texts, or a pattern such as 'images/*.png'.")
flags.DEFINE_string('output', None, 'File of the lines of JSON; by default they are printed.')
flags.DEFINE_string('prompt', '', 'Start of the text, or the source to translate.')
flags.DEFINE_string(
    'prompt_file', None, 'File of prompts, one per line, instead of --prompt; all partitions compute at the same time.')
flags.DEFINE_integer('num_tokens', 200, 'Language models: largest number of tokens to generate.', lower_bound=1)
flags.DEFINE_float('temperature', 0.8, 'Language models: sampling temperature; 0: always the likeliest token.')
flags.DEFINE_integer('top_k', 40, 'Language models: choose among this number of likeliest tokens; 0: all.')
flags.DEFINE_float(
    'top_p', 1., 'Language models: choose among the likeliest tokens whose probabilities reach this sum; 1: all.')
flags.DEFINE_integer('seed', 0, 'Language models: random seed of the text.')
flags.DEFINE_enum(
    'cluster', 'none', ['none', 'pipeline', 'multi_worker', 'parameter_server'],
    'Train on many machines, each of which runs this command. pipeline: stages on the workers. multi_worker: a '
    'pipeline on each worker, gradients summed. parameter_server: weights on servers, to which workers send '
    'gradients.')
flags.DEFINE_string(
    'cluster_spec', launchers.AUTO, 'With --cluster: file in the form of TF_CONFIG that lists all processes; auto: '
    'TF_CONFIG itself, else the variables of Slurm or a TPU slice.')
flags.DEFINE_integer(
    'ps', None, 'With --cluster=parameter_server and --cluster_spec=auto: how many processes after the first one are '
    'parameter servers, where TF_CONFIG does not say it.', lower_bound=1)
flags.DEFINE_bool(
    'trusted_network', False, 'With --cluster: only trusted machines reach this one. Its server listens on every '
    'network, and whoever reaches it can run any code there, so without this flag it starts only without a network.')
flags.DEFINE_string(
    'task', None, "With --cluster: name of this process, such as 'worker:1'; by default that of the cluster spec. With "
    "--tpu=slice: 'worker:0' is only the server of host 0.")
flags.DEFINE_enum(
    'update', 'async', ['async', 'sync'],
    'With --cluster=parameter_server: whether workers wait for each other in every step.')
flags.DEFINE_float(
    'step_timeout_seconds', 600., 'Limit of a step; the first one may take ten times as long. After it a worker of a '
    'cluster counts as lost, and the process ends so that it can be restarted; 0: none.',
    lower_bound=0., upper_bound=1e9)
flags.DEFINE_float(
    'replace_after_seconds', 0., 'With --cluster=pipeline: training continues without a worker that has not answered '
    'for this time, and uses it again from the next checkpoint after it is back; 0: training ends, with exit code 75.',
    lower_bound=0., upper_bound=1e9)


def prompts(given: flags.FlagValues) -> list[str]:
    """Return the prompts of --prompt or --prompt_file. Raise UsageError if both flags were given."""
    if given.prompt_file is None:
        return [given.prompt]
    if given['prompt'].present:
        raise app.UsageError('--prompt and --prompt_file were both given. Give one of them.')
    text = pathlib.Path(given.prompt_file).expanduser().read_text(encoding='utf-8-sig')
    return text.removesuffix('\n').split('\n')  # U+2028 and the like may occur in a prompt


def refuse_sampling(given: flags.FlagValues) -> None:
    """Raise UsageError if flags for language models, such as --top_k, were given."""
    for name in _FLAGS_OF_LANGUAGE_MODELS:
        if given[name].present:
            raise app.UsageError(f'--{name} is for language models, and this model translates. Leave it out.')


def check(given: flags.FlagValues) -> None:
    """Check that no flag is missing, and that the flags can be combined.

    Raises:
        UsageError: the first mistake, and how to correct it.
    """
    _check_mode(given)
    _check_devices(given)
    _check_cluster(given)


def _check_mode(given):
    if given['log_dir'].present:
        raise app.UsageError('--log_dir is not a flag of LingPipe. Did you mean --logdir?')
    if not given.model:
        raise app.UsageError('--model is missing: give, for instance, --model=params.amoebanet, or see --mode=list.')
    for topic in topics.TOPICS:
        for name in topic.names if topic.modes and given.mode not in topic.modes else ():
            if given[name].present:
                raise app.UsageError(
                    f'--{name} is for --mode={", ".join(topic.modes)} only.{_INSTEAD.get(name, "")}')
    if given.checkpoint and given.follow:
        raise app.UsageError('--checkpoint and --follow were both given. Give one of them.')
    if given.mode == 'generate':
        prompts(given)
    if given.mode == 'predict' and not given.input:
        raise app.UsageError("--input is missing: --mode=predict needs files, such as --input='images/*.png'.")
    needs_no_logdir = given.mode in ('inspect_params', 'inspect_model', 'plan') or given.dry_run
    if not given.logdir and not needs_no_logdir:
        raise app.UsageError(f'--logdir is missing: --mode={given.mode} needs a folder, such as --logdir=logs/my_run.')


def _check_devices(given):
    if given['device'].present and given.mode in ('plan', 'export'):
        raise app.UsageError(f'--device={given.device} is not for --mode={given.mode}, which uses no devices. Leave it '
                             'out; --accelerator says what to plan for.')
    if given['tpu_topology'].present and not given.compile:
        raise app.UsageError('--tpu_topology is for --compile only. Give --compile too.')
    kind = given.tpu_topology.partition(':')[0]
    if given.compile and given.accelerator not in (None, kind):
        raise app.UsageError(f'--accelerator={given.accelerator} does not go with --compile, which compiles for '
                             f'--tpu_topology={given.tpu_topology}. Leave --accelerator out, or give --tpu_topology of '
                             'that TPU.')
    if given.tpu and given.device != 'tpu':
        raise app.UsageError(f'--tpu={given.tpu} is for --device=tpu only. Add --device=tpu.')
    if given.tpu == launchers.SLICE and given.mode != 'train':
        raise app.UsageError(f'--tpu={given.tpu} is for --mode=train only. For --mode={given.mode} give --device=cpu.')


def _check_cluster(given):
    if given.cluster == 'none':
        for name in _FLAGS_OF_CLUSTERS:
            if given[name].present and not (name == 'task' and given.tpu == launchers.SLICE):
                raise app.UsageError(f'--{name} is for --cluster=pipeline, multi_worker and parameter_server only. Add '
                                     '--cluster.')
        if os.environ.get('TF_CONFIG') and given.mode == 'train':
            logging.warning('TF_CONFIG names a cluster, but --cluster=none trains on this machine only. Give --cluster '
                            'too, or unset it.')
    elif given.mode == 'trace' and given.cluster != 'pipeline':
        raise app.UsageError(f'--cluster={given.cluster} is for --mode=train only. For --mode=trace leave it out.')
    elif given.dry_run:
        raise app.UsageError('--dry_run is for one machine. Leave --cluster out: the plan is the same.')
    elif given.device == 'tpu':
        raise app.UsageError('--cluster is for CPUs and GPUs only: the hosts of a TPU slice train with --tpu=slice. '
                             'Give one of them.')
    for name in ('update', 'ps'):
        if given[name].present and given.cluster != 'parameter_server':
            raise app.UsageError(f'--{name} is for --cluster=parameter_server only. Add --cluster=parameter_server.')
    if given['replace_after_seconds'].present and (given.mode != 'train' or given.cluster != 'pipeline'):
        raise app.UsageError('--replace_after_seconds is for --mode=train --cluster=pipeline only: it says when '
                             'training continues without a lost worker. Other runs end with exit code 75, and resume '
                             'with the workers that they are started with.')
