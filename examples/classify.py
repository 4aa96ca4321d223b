"""Fine-tunes a text classifier of KerasHub on labelled texts, in a pipeline over several devices.

    python examples/classify.py --preset=bert_tiny_en_uncased --train=train.csv --test=test.csv --save=tuned

The files have columns `text` and `label`; JSON lines with these fields work too.
"""

import argparse

import keras
import keras_hub
import tensorflow as tf

import lingpipe
from lingpipe.input import hub_inputs, hub_tokenizer, text_records


def main(arguments=None):
    """Fine-tune a classifier, save it, and return its class names and {name of a curve: its values by epoch}."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--preset', required=True, help='folder or name of a KerasHub preset')
    parser.add_argument('--train', required=True, help='file of labelled texts')
    parser.add_argument('--test', required=True, help='file of other labelled texts')
    parser.add_argument('--save', required=True, help='folder for the preset of the fine-tuned model')
    parser.add_argument('--num_partitions', type=int, default=2)
    parser.add_argument('--batch_size', type=int, default=16)
    parser.add_argument('--sequence_length', type=int, default=128)
    parser.add_argument('--epochs', type=int, default=3)
    parser.add_argument('--learning_rate', type=float, default=5e-5)
    flags = parser.parse_args(arguments)

    if not tf.config.list_physical_devices('GPU'):
        lingpipe.use_virtual_devices(flags.num_partitions)
    params = hub_inputs.TextClassificationInput.Params().Set(
        class_names=sorted({record.label('label') for record in text_records.from_files(flags.train)}),
        batch_size=flags.batch_size, sequence_length=flags.sequence_length,
        tokenizer=hub_tokenizer.KerasHubTokenizer.Params().Set(preset=flags.preset))
    train, test = (params.Copy().Set(files=files).Instantiate() for files in (flags.train, flags.test))

    pipe = lingpipe.GPipeLayer.from_preset(
        flags.preset, 'text_classifier', {'num_classes': train.num_classes}, preprocessor=None,
        num_partitions=flags.num_partitions, num_micro_batches=4, schedule='1f1b')
    model = lingpipe.PipelineModel(pipe)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction='mean_with_sample_weight')
    model.compile(keras.optimizers.AdamW(flags.learning_rate), loss, weighted_metrics=['accuracy'])
    history = model.fit(
        train.training_dataset(), validation_data=test.evaluation_dataset(), epochs=flags.epochs, shuffle=False,
        steps_per_epoch=max(1, train.num_examples // flags.batch_size), verbose=2)

    tuned = pipe.model  # the task of KerasHub, whose weights the pipeline trains
    tuned.preprocessor = keras_hub.models.TextClassifierPreprocessor.from_preset(
        flags.preset, sequence_length=flags.sequence_length)
    tuned.save_to_preset(flags.save)
    return train.class_names, history.history


if __name__ == '__main__':
    main()
