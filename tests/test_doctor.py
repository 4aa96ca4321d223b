"""The report on a machine: on this one, and on others that are mocked."""

import subprocess

import keras
import pytest
import tensorflow as tf

from lingpipe import doctor

SAID = {'version': '2.21.0', 'keras': '3.15.1', 'gpus': [], 'tpus': [], 'problems': []}
HEALTHY = doctor.Machine({'tensorflow': '2.21.0', 'keras': '3.15.1'}, False, [], SAID)
TPU_PACKAGES = {'tensorflow-tpu': '2.20.0', 'libtpu': '0.0.21.1', 'keras': '3.12.0'}

# name: (what differs from a healthy machine, what the only sentence must say)
WRONG = {
    'no TensorFlow': ({'packages': {}}, ['builds of TensorFlow: none', 'pip install']),
    'two builds': (
        {'packages': {'tensorflow': '2.21.0', **TPU_PACKAGES}, 'tpu_files': ['/dev/accel0']},
        ['builds of TensorFlow: tensorflow, tensorflow-tpu.', 'fresh virtual environment']),
    'an import that fails': ({'tensorflow': {'problems': ['Importing TensorFlow failed.']}}, ['Importing TensorFlow failed']),
    'an old TensorFlow': ({'tensorflow': {**SAID, 'version': '2.15.1'}}, ['TensorFlow 2.15.1', '2.18 to 2.21']),
    'a new Keras': ({'tensorflow': {**SAID, 'keras': '3.99.0'}}, ['Keras 3.99.0', '3.15 were']),
    'GPUs that are not found': ({'has_nvidia_driver': True}, ['finds no GPU', 'nvidia-smi', 'requirements/gpu.txt']),
    'TPUs and a build without them': ({'tpu_files': ['/dev/accel0']}, ['/dev/accel0', 'requirements/tpu.txt']),
    'no TPU for the build of TPUs': (
        {'packages': TPU_PACKAGES}, ['no device files of TPUs', '--privileged', '--device=cpu']),
}


@pytest.mark.parametrize('differences, words', WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_sentence_with_a_remedy(differences, words):
    machine = HEALTHY._replace(**differences)
    sentence, = doctor.problems(machine)
    assert all(word in sentence for word in words)
    assert f'* {sentence}' in doctor.report(machine)


@pytest.mark.parametrize('differences, words', [
    ({}, 'virtual CPU devices, one for each partition.'),
    ({'has_nvidia_driver': True, 'tensorflow': {**SAID, 'gpus': ['A100', 'A100']}}, '2 GPUs, one partition on each.'),
    ({'packages': TPU_PACKAGES, 'tpu_files': ['/dev/accel0'], 'tensorflow': {**SAID, 'tpus': ['TPU:0']}},
     '1 TPU devices, in mixed_bfloat16'),
], ids=['CPU', 'GPU', 'TPU'])
def test_a_healthy_machine_is_told_what_is_used(differences, words):
    machine = HEALTHY._replace(**differences)
    assert doctor.problems(machine) == []
    assert words in doctor.report(machine) and doctor.report(machine).endswith('Nothing is wrong.')


def test_this_machine_is_described():
    machine = doctor.examine()
    assert machine.tensorflow['version'] == tf.__version__
    assert machine.tensorflow['tpus'] == []
    assert not [sentence for sentence in doctor.problems(machine) if 'build for TPUs' not in sentence]


def test_what_hangs_or_dies_is_said(monkeypatch):
    def hang(command, timeout, **unused):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, 'run', hang)
    assert 'longer than 120 s' in doctor.examine().tensorflow['problems'][0]
    killed = subprocess.CompletedProcess([], -4, '', 'Illegal instruction')
    monkeypatch.setattr(subprocess, 'run', lambda *_, **unused: killed)
    assert 'exit code -4): Illegal instruction' in doctor.examine().tensorflow['problems'][0]


@pytest.mark.parametrize('name, value', [('floatx', 'float64'), ('image_data_format', 'channels_first'), ('epsilon', 1e-3)])
def test_settings_of_keras_that_change_params_are_refused(name, value, monkeypatch):
    doctor.refuse_keras_settings()
    monkeypatch.setattr(keras.config, name, lambda: value)
    with pytest.raises(ValueError, match=f'^{name}={value!r} in the settings of Keras .* Set it to that'):
        doctor.refuse_keras_settings()
