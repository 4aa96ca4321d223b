"""Fine-tunes a causal language model of KerasHub by LoRA (arXiv 2106.09685), in a pipeline over several devices.

    python examples/lora.py --preset=gemma_2b_en --texts=texts.txt --save=tuned

Each line of the file is a text. The folder `tuned` is a preset of KerasHub. The low-rank parts are merged into the
kernels, so the model is no larger than the original.
"""

import argparse
import pathlib

import keras
import keras_hub
import tensorflow as tf

import lingpipe


def main(arguments=None):
    """Fine-tune a language model, save it, and return {name of a curve: its values by epoch}."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--preset', required=True, help='folder or name of a KerasHub preset')
    parser.add_argument('--texts', required=True, help='file with a text a line')
    parser.add_argument('--save', required=True, help='folder for the preset of the fine-tuned model')
    parser.add_argument('--rank', type=int, default=4)
    parser.add_argument('--lora_layers', nargs='*', metavar='REGEX', help='default: the queries and values')
    parser.add_argument('--num_partitions', type=int, default=2)
    parser.add_argument('--batch_size', type=int, default=8)
    parser.add_argument('--sequence_length', type=int, default=256)
    parser.add_argument('--epochs', type=int, default=3)
    parser.add_argument('--learning_rate', type=float, default=1e-3)
    flags = parser.parse_args(arguments)

    if not tf.config.list_physical_devices('GPU'):
        lingpipe.use_virtual_devices(flags.num_partitions)
    preprocessor = keras_hub.models.CausalLMPreprocessor.from_preset(
        flags.preset, sequence_length=flags.sequence_length)
    pipe = lingpipe.GPipeLayer.from_preset(
        flags.preset, lora_rank=flags.rank, lora_layers=flags.lora_layers, preprocessor=preprocessor,
        num_partitions=flags.num_partitions, num_micro_batches=4, schedule='1f1b')
    task = pipe.model  # KerasHub's task, whose weights the pipeline trains

    model = lingpipe.PipelineModel(pipe)
    model.compile(keras.optimizers.Adam(flags.learning_rate), keras.losses.SparseCategoricalCrossentropy(True))
    lines = [line for line in pathlib.Path(flags.texts).read_text(encoding='utf-8').splitlines() if line]
    texts = tf.data.Dataset.from_tensor_slices(lines).shuffle(len(lines)).batch(flags.batch_size)
    history = model.fit(texts, epochs=flags.epochs, verbose=2)

    num_trained = sum(variable.value.shape.num_elements() for variable in pipe.trainable_variables)
    print(f'Trained {num_trained:,} of {task.count_params():,} parameters.')
    task.save_to_preset(flags.save)
    return history.history


if __name__ == '__main__':
    main()
