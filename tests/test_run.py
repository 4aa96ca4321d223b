"""The command line, run as a person runs it."""

import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests import forked_programs, needs

ROOT = pathlib.Path(__file__).parents[1]
TINY = '--model=tiny_digits'
GREEDY = '--model=tiny_digits.GreedyDigits'

# name: (arguments, what the sentence must say)
ERRORS = {
    'a field that is not there': (
        [TINY, '--logdir=x', '--model_params_override=train.max_step=5'],
        'train.max_step is not a parameter; did you mean train.max_steps'),
    'a file of overrides that is not there': (
        [TINY, '--logdir=x', '--model_params_file_override=none.txt'],
        "FileNotFoundError: [Errno 2] No such file or directory: 'none.txt'"),
    'a folder below a file': (
        [TINY, '--logdir=file/logs'], '--logdir=file/logs cannot be written to (file is not a directory).'),
    'a kind of device that is not there': (
        [TINY, '--logdir=x', '--device=gpu'], "No device of kind 'GPU' was found on this machine. Choose one of "),
}
USAGE_ERRORS = {
    'a mode that is not there': (
        [TINY, '--logdir=x', '--mode=trian'],
        'flag --mode=trian: value should be one of '
        '<train|eval|trace|report|export|generate|predict|inspect_params|inspect_model|plan|list>'),
    'a checkpoint to evaluate in a training': (
        [TINY, '--logdir=x', '--checkpoint=logs/train/ckpt-5'],
        '--checkpoint is for --mode=eval, export, generate, predict only. To train from the weights of a checkpoint, set '
        'train.init_from_checkpoint'),
    'a TPU for another device': ([TINY, '--logdir=x', '--tpu=mine'], '--tpu=mine is for --device=tpu only. Add '
                                                                     '--device=tpu.'),
    'prompts that are not there': (
        [TINY, '--logdir=x', '--mode=generate', '--prompt_file=missing.txt'],
        "[Errno 2] No such file or directory: 'missing.txt'"),
    'temperature of a translation': (
        ['--model=params.transformer_nmt', '--logdir=x', '--mode=generate', '--prompt=Once', '--temperature=2'],
        '--temperature is for language models, and this model translates. Leave it out.'),
    'a cluster of TPUs': ([TINY, '--logdir=x', '--cluster=pipeline', '--device=tpu'],
        '--cluster is for CPUs and GPUs only'),
    'no model': (['--logdir=x'], '--model is missing: give, for instance, --model=params.amoebanet, or see '
                                 '--mode=list'),
    'no folder': ([TINY], '--logdir is missing: --mode=train needs a folder, such as --logdir=logs/my_run.'),
    'a word that is no flag': (
        ['evla', TINY, '--logdir=x'],
        "'evla' is not a flag: flags are given as --name=value. Did you mean the mode eval?"),
    'two modes': (['eval', TINY, '--logdir=x', '--mode=train'], 'eval and --mode=train were both given. Give one of'),
    'a flag that is not there': ([TINY, '--logdr=x'], "Unknown command line flag 'logdr'. Did you mean: logdir"),
}


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class CommandLine:
    """Runs run.py in a folder of its own: `run` as a person does, `fork` without importing TensorFlow once more."""

    def __init__(self, folder, data_dir):
        self.folder = folder
        self._environment = {'TFDS_DATA_DIR': data_dir, 'PYTHONPATH': str(ROOT / 'tests/programs')}

    def run(self, *arguments):
        inherited = {name: value for name, value in os.environ.items() if name != 'TF_CPP_MIN_LOG_LEVEL'}
        return outcome_of(subprocess.Popen(
            [sys.executable, ROOT / 'run.py', *arguments], cwd=self.folder, env=inherited | self._environment,
            text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))

    def fork(self, *arguments):
        return outcome_of(forked_programs.ForkedProgram(
            [ROOT / 'run.py', *arguments], self._environment, self.folder))


def outcome_of(process):
    out, err = process.communicate()
    return Outcome(process.returncode, out, err)


@pytest.fixture(scope='module')
def command_line(tmp_path_factory):
    folder = tmp_path_factory.mktemp('command_line')
    (folder / 'file').touch()
    return CommandLine(folder, str(folder / 'data'))


@pytest.fixture(scope='module')
def first(command_line):
    """Outcome of a training run."""
    return command_line.run(TINY, '--logdir=first')


@pytest.fixture(scope='module')
def inspected(command_line):
    """Outcome of a command that shows params, of which it changes three."""
    return command_line.fork(
        TINY, '--mode=inspect_params', '--model_params_override=train.max_steps=7; task.name=seven; test.batch_size=75')


@pytest.mark.parametrize('arguments, sentence', ERRORS.values(), ids=ERRORS)
def test_an_error_is_one_sentence_and_leaves_no_folder_behind(command_line, arguments, sentence):
    code, out, err = command_line.fork(*arguments)
    assert code == 1 and out == ''
    assert 'Traceback' not in err
    lines = err.splitlines()
    assert [line for line in lines if line.startswith('Error: ')] == [lines[-2]]
    assert lines[-2].startswith(f'Error: {sentence}')
    assert lines[-1] == '(--verbosity=1 shows where.)'
    assert not {'x', 'typo'} & {path.name for path in command_line.folder.iterdir()}


@pytest.mark.parametrize('arguments, sentence', USAGE_ERRORS.values(), ids=USAGE_ERRORS)
def test_a_wrong_use_is_answered_by_a_sentence_about_the_flags(command_line, arguments, sentence):
    code, out, err = command_line.run(*arguments)
    assert code == 1
    assert out == '' and err.startswith(f'Error: {sentence}')
    assert err.splitlines()[-1] == '(`python run.py --help` shows all flags.)'


def test_too_little_memory_is_reported_in_one_sentence_with_advice(command_line):
    code, _, err = command_line.fork(
        GREEDY, '--logdir=greedy', '--model_params_override=task.body.num_partitions=1')
    assert code == 1 and 'Traceback' not in err
    assert re.search(
        r'^Error: A device ran out of memory \(OOM when allocating tensor .* on CPU:0 .*\)\. Raise '
        r"task.body.num_micro_batches \(now 2\), set task.body.recompute='layer' \(now 'stage'\), raise "
        r'task.body.num_partitions \(now 1\), or lower input.batch_size\.$', err, re.MULTILINE)


def test_a_step_has_a_limit_on_one_machine_too(command_line):
    code, _, err = command_line.fork(TINY, '--logdir=late', '--step_timeout_seconds=0.01')
    assert code == 75
    assert 'Error: Waited 0.1 s for the first step to end (--step_timeout_seconds=0.01).' in err


def test_a_first_training_run_writes_its_progress_and_nothing_else(first):
    assert first.code == 0
    assert re.fullmatch(r'First step after .* s\n(step \d+/12, .* left\n)+step 12, Test: .* %\nTime .*\n', first.err)


def test_a_listing_has_every_model_with_its_first_line(command_line):
    code, out, _ = command_line.fork('--mode=list')
    assert code == 0
    told = "params.amoebanet.AmoebaNetD18x256: AmoebaNet-D(18, 256), 122M parameters: the model of GPipe's Table 2."
    assert told in out.splitlines()


def test_a_plan_is_printed_and_written_with_a_picture(command_line):
    code, out, _ = command_line.fork(
        TINY, '--mode=plan', '--accelerator=v3', '--logdir=planned',
        '--model_params_override=task.body.num_partitions=auto')
    assert code == 0 and '\nFits on 1 × v3 with M=2, recompute=stage.\n' in out
    assert (command_line.folder / 'planned/plan/plan.txt').read_text() in out
    assert (command_line.folder / 'planned/plan/memory.png').read_bytes().startswith(b'\x89PNG')


@needs.tpu_compiler
def test_a_plan_is_compiled_for_tpus_that_are_not_there(command_line):
    code, out, err = command_line.fork(  # to compile random numbers takes longest
        TINY, '--mode=plan', '--compile', '--logdir=compiled', '--model_params_override=task.body.layers[3].rate=0.0')
    assert code == 0, err
    assert 'device  planned MiB  compiled MiB' in out and '\nBy the TPU compiler it fits on devices of v5e:2x2.\n' in out
    assert 'Fits on 2 × v5e' in out
    assert (command_line.folder / 'compiled/plan/plan.txt').read_text() in out
    assert list((command_line.folder / 'compiled/plan/compiled').iterdir())


def test_inspected_params_read_back_from_a_file(command_line, inspected):
    code, out, _ = inspected
    assert code == 0 and "task.name : 'seven'\n" in out and 'train.max_steps : 7\n' in out
    assert 'test.batch_size : 75\n' in out and 'input.batch_size : 32\n' in out
    (command_line.folder / 'params.txt').write_text(out)
    assert command_line.fork(TINY, '--mode=inspect_params', '--model_params_file_override=params.txt')[:2] == (0, out)


def test_a_giant_is_inspected_without_being_allocated(command_line):
    code, out, _ = command_line.fork(
        '--model=params.transformer_lm.Transformer1663', '--mode=inspect_model', '--device=cpu')
    assert code == 0 and '\n83,876,914,432 parameters, ' in out


def test_a_run_records_the_params_of_the_user_and_nothing_else(command_line, first, inspected):
    """What this machine added, such as devices, is left out."""
    written = (command_line.folder / 'first/control/params.txt').read_text()
    assert 'task.body.devices : NoneType\n' in written
    different = {line.split()[0] for line in {*written.splitlines()} ^ {*inspected.out.splitlines()}}
    assert different == {'task.name', 'test.batch_size', 'train.max_steps'}  # what the two commands overrode


def test_a_report_is_one_file_in_the_folder_of_a_run(command_line, first):
    assert command_line.fork(TINY, '--mode=report', '--logdir=first') == (0, 'first/report.html\n', '')
    text = (command_line.folder / 'first/report.html').read_text('utf-8')
    assert all(f'<h2>{section}</h2>' in text for section in ('Curves', 'Partitions', 'Samples', 'Hardware and versions'))


def test_a_trace_says_where_the_time_went_and_names_its_files(command_line):
    code, out, err = command_line.fork(
        TINY, '--mode=trace', '--steps=2', '--logdir=traced', '--model_params_override=task.body.schedule=1f1b')
    assert (code, err) == (0, '')
    assert re.search(
        r'^2 steps of [\d.]+ ms on average: 1f1b, 2 partitions on 2 devices, 2 micro-batches$', out, re.M)
    assert out.splitlines()[-2:] == ['traced/trace/timeline.png', 'traced/trace/trace.json']
    assert all((command_line.folder / path).stat().st_size for path in out.splitlines()[-2:])
