"""The mode `predict`: classes of files by a trained model."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import image_augmentation
from lingpipe.models import keras_task
from lingpipe.training import errors, inference


@pytest.fixture(name='files')
def files_fixture(tmp_path):
    """A folder of seven images in the size of the dataset, a larger one, and a file that is not an image."""
    pixels, folder = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 1), np.uint8), tmp_path / 'images'
    (folder / 'inner').mkdir(parents=True)
    for number, image in enumerate(pixels):
        (folder / f'{number}.png').write_bytes(tf.io.encode_png(image).numpy())
    (folder / '8.jpg').write_bytes(tf.io.encode_jpeg(np.zeros([50, 30, 3], np.uint8)).numpy())
    (folder / '9.png').write_text('no image')
    (folder / 'link.png').symlink_to(folder / 'nothing')
    return folder, pixels


def test_files_get_the_classes_of_the_exported_model(tiny, copied, files, tmp_path, capsys):
    folder, pixels = files
    exported, *_ = inference.Exporter(tiny.params(), str(copied)).run()
    logits = keras.saving.load_model(exported)(pixels)
    predictor = inference.Prediction(tiny.params(), str(copied))
    lines = predictor.run(str(folder), str(tmp_path / 'new/classes.jsonl'))
    assert '10 predictions in ' in (printed := capsys.readouterr().out) and ', 2 of them not possible' in printed
    assert [json.loads(line) for line in (tmp_path / 'new/classes.jsonl').read_text('utf-8').splitlines()] == lines
    assert [line['class'] for line in lines[:7]] == [str(number) for number in np.argmax(logits, -1)]
    np.testing.assert_allclose(
        [line['probability'] for line in lines[:7]], np.max(tf.nn.softmax(logits), -1), rtol=1e-4, atol=1e-6)
    assert lines[7]['input'].endswith('8.jpg') and 'class' in lines[7]
    assert [line['problem'] for line in lines[8:]] == 2 * ['is empty, cut off, damaged or no image of the right size']


def test_lines_are_printed_where_no_file_is_named(tiny, copied, files, capsys):
    lines = inference.Prediction(tiny.params(), str(copied)).run(str(files[0] / '[01].png'))
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines and len(lines) == 2


def test_images_are_resized_and_normalised_as_in_evaluation(tiny, files):
    params = tiny.params().input.Set(image_size=16)
    count, batches = params.cls.FileBatches(params, str(files[0] / '[0-6].png'))
    images = tf.concat([images for images, *_ in batches], 0)
    expected = image_augmentation.keep(image_augmentation.normalize(tf.constant(files[1]), 'digits'), None, 16)
    np.testing.assert_allclose(images, expected, rtol=1e-5, atol=1e-5)
    assert count == 7


@pytest.mark.parametrize('change, files, error, message', [
    ({}, 'nowhere/*.png', ValueError, "files: 'nowhere/.*' names no file"),
    ({'task': keras_task.KerasTask.Params()}, 'x', errors.TrainingError, 'needs an ImageClassifier')])
def test_what_cannot_be_predicted_is_refused(tiny, copied, change, files, error, message):
    with pytest.raises(error, match=message):
        inference.Prediction(tiny.params().Set(**change), str(copied)).run(files)


def test_an_output_does_not_replace_the_input(tiny, copied, files, tmp_path):
    (tmp_path / 'link.png').symlink_to(files[0] / '0.png')
    before = (files[0] / '0.png').read_bytes()
    with pytest.raises(ValueError, match='link.png is also the --input, which would be lost. Give another'):
        inference.Prediction(tiny.params(), str(copied)).run(str(files[0] / '*.png'), str(tmp_path / 'link.png'))
    assert (files[0] / '0.png').read_bytes() == before


def test_a_prediction_that_fails_leaves_no_output(tiny, copied, files, tmp_path):
    with pytest.raises(errors.TrainingError):
        inference.Prediction(tiny.params(), str(copied)).run(
            str(files[0]), str(tmp_path / 'out.jsonl'), path=str(tmp_path / 'ckpt-9'))
    assert not (tmp_path / 'out.jsonl').exists()


def test_numbers_that_are_not_finite_are_a_problem(tiny, copied, files, monkeypatch):
    monkeypatch.setattr(tf.nn, 'softmax', lambda logits: logits * float('nan'))
    line, = inference.Prediction(tiny.params(), str(copied)).run(str(files[0] / '0.png'))
    assert line['problem'] == 'the model returns numbers that are not finite' and 'class' not in line
