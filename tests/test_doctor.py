"""The report on a machine: on this one, and on others that are mocked."""

import subprocess

import keras
import pytest
import tensorflow as tf

from lingpipe import doctor

SAID = {'version': '2.21.0', 'keras': '3.15.1', 'cuda': None, 'gpus': [], 'tpus': []}
HEALTHY = doctor.Machine(
    system='Linux x86_64', processor='Epyc', num_cores=2, memory=2**34,
    packages={'tensorflow': '2.21.0', 'keras': '3.15.1'}, nvidia_driver=None, tpu_files=[], tensorflow=SAID)
TPU_PACKAGES = {'tensorflow-tpu': '2.20.0', 'libtpu': '0.0.21.1', 'keras': '3.12.0'}

# name: (what differs from a healthy machine, what the only sentence must say)
WRONG = {
    'no TensorFlow': ({'packages': {}}, ['No TensorFlow is installed', 'pip install']),
    'two builds': (
        {'packages': {'tensorflow': '2.21.0', **TPU_PACKAGES}, 'tpu_files': ['/dev/accel0']},
        ['tensorflow and tensorflow-tpu are installed side by side', 'fresh virtual environment']),
    'a libtpu that is too new': (
        {'packages': {**TPU_PACKAGES, 'libtpu': '0.0.51'}, 'tpu_files': ['/dev/accel0']}, ['libtpu 0.0.51', '0.0.17 to 0.0.30', 'requirements/tpu']),
    'no libtpu': ({'packages': {'tensorflow-tpu': '2.20.0'}, 'tpu_files': ['/dev/accel0']}, ['no libtpu']),
    'an import that fails': ({'tensorflow': {'error': 'Importing TensorFlow failed.'}}, ['Importing TensorFlow failed']),
    'an old TensorFlow': ({'tensorflow': {**SAID, 'version': '2.15.1'}}, ['TensorFlow 2.15.1', '2.18 to 2.21']),
    'a new Keras': ({'tensorflow': {**SAID, 'keras': '3.99.0'}}, ['Keras 3.99.0', '3.15 was']),
    'settings of Keras': ({'tensorflow': {**SAID, 'settings': "floatx='float16' in keras.json"}}, ["floatx='float16'"]),
    'GPUs and a build without CUDA': (
        {'nvidia_driver': '550.54'}, ['driver 550.54', 'a build without CUDA', 'requirements/gpu.txt']),
    'GPUs that are not found': (
        {'nvidia_driver': '550.54', 'tensorflow': {**SAID, 'cuda': '12.5.1'}}, ['finds none of them', 'nvidia-smi']),
    'a driver that is too old': (
        {'nvidia_driver': '520.61.05', 'tensorflow': {**SAID, 'cuda': '12.5.1'}},
        ['driver 520.61.05 is older', 'CUDA 12.5.1', '525.60.13 or newer', 'restart']),
    'a driver that is too old for a newer CUDA': (
        {'nvidia_driver': '575.57.08', 'tensorflow': {**SAID, 'cuda': '13.0', 'gpus': ['H100']}}, ['580 or newer']),
    'TPUs and a build without them': ({'tpu_files': ['/dev/accel0']}, ['/dev/accel0', 'requirements/tpu.txt']),
    'no TPU for the build of TPUs': (
        {'packages': TPU_PACKAGES}, ['no device files of TPUs', '--privileged', '--device=cpu']),
    'TPUs that do not start': (
        {'tpu_files': ['/dev/accel0'], 'packages': TPU_PACKAGES,
         'tensorflow': {**SAID, 'version': '2.20.0', 'tpu_error': 'no TPU could be started.'}},
        ['no TPU could be started']),
}


@pytest.mark.parametrize('differences, words', WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_sentence_with_a_remedy(differences, words):
    machine = HEALTHY._replace(**differences)
    sentence, = doctor.problems(machine)
    assert all(word in sentence for word in words)
    assert f'* {sentence}' in doctor.report(machine)


@pytest.mark.parametrize('differences, words', [
    ({}, 'virtual CPU devices, one for each partition, on 2 cores.'),
    ({'nvidia_driver': '525.60.13', 'tensorflow': {**SAID, 'cuda': '12.5.1', 'gpus': ['A100', 'A100']}}, '2 GPUs, one partition on each.'),
    ({'packages': TPU_PACKAGES, 'tpu_files': ['/dev/accel0'], 'tensorflow': {**SAID, 'tpus': ['TPU:0']}},
     '1 TPU devices, in mixed_bfloat16'),
], ids=['CPU', 'GPU', 'TPU'])
def test_a_healthy_machine_is_told_what_is_used(differences, words):
    machine = HEALTHY._replace(**differences)
    assert doctor.problems(machine) == []
    assert words in doctor.report(machine) and doctor.report(machine).endswith('Nothing is wrong.')


def test_a_backend_without_its_package_is_named(monkeypatch):
    monkeypatch.setenv('KERAS_BACKEND', 'torch')
    assert doctor.problems(doctor.examine())[0].startswith('KERAS_BACKEND=torch is set, but LingPipe needs')


def test_this_machine_is_described():
    machine = doctor.examine()
    assert machine.tensorflow['version'] == tf.__version__
    assert machine.tensorflow['tpus'] == [] and machine.num_cores >= 1 and machine.memory > 2**30
    assert not [sentence for sentence in doctor.problems(machine) if 'build for TPUs' not in sentence]


@pytest.mark.parametrize('text, version', [
    ('NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 22:02:47 UTC 2022', '525.60.13'),
    ('NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build', '580.159.04')])
def test_the_driver_is_read_of_both_kinds_of_kernel_module(monkeypatch, tmp_path, text, version):
    path = tmp_path / 'version'
    path.write_text(text)
    monkeypatch.setattr(doctor, '_NVIDIA_DRIVER', path)
    monkeypatch.setattr(doctor, '_ask_tensorflow', lambda timeout_seconds: SAID)
    assert doctor.examine().nvidia_driver == version


def test_what_hangs_or_dies_is_said(monkeypatch):
    def hang(command, timeout, **unused):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, 'run', hang)
    assert 'longer than 5 s' in doctor.examine(5).tensorflow['error']
    killed = subprocess.CompletedProcess([], -4, '', 'Illegal instruction')
    monkeypatch.setattr(subprocess, 'run', lambda *_, **unused: killed)
    assert 'ended by signal 4: Illegal instruction' in doctor.examine().tensorflow['error']


@pytest.mark.parametrize('name, value', [('floatx', 'float64'), ('image_data_format', 'channels_first'), ('epsilon', 1e-3)])
def test_settings_of_keras_that_change_params_are_refused(name, value, monkeypatch):
    doctor.refuse_keras_settings()
    monkeypatch.setattr(keras.config, name, lambda: value)
    with pytest.raises(ValueError, match=f'^{name}={value!r} in the settings of Keras .* Set it to that'):
        doctor.refuse_keras_settings()
