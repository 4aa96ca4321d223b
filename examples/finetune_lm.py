"""Fine-tunes a causal language model of KerasHub on prompts and responses, in a pipeline over several devices.

    python examples/finetune_lm.py --preset=gpt2_base_en --files=instructions.jsonl --save=tuned

Each line of the file is like {"prompt": "2 + 2 =", "response": " 4"}. The folder `tuned` is a preset of KerasHub.
"""

import argparse

import keras
import keras_hub
import tensorflow as tf

import lingpipe
from lingpipe.input import hub_inputs, hub_tokenizer


def main(arguments=None):
    """Fine-tune a language model, save it, and return {name of a curve: its values by epoch}."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--preset', required=True, help='folder or name of a KerasHub preset')
    parser.add_argument('--files', required=True, help="'.jsonl', '.csv', or a pattern such as 'data/*.jsonl'")
    parser.add_argument('--save', required=True, help='folder for the preset of the fine-tuned model')
    parser.add_argument('--num_partitions', type=int, default=2)
    parser.add_argument('--batch_size', type=int, default=8)
    parser.add_argument('--sequence_length', type=int, default=256)
    parser.add_argument('--epochs', type=int, default=3)
    parser.add_argument('--learning_rate', type=float, default=1e-4)
    flags = parser.parse_args(arguments)

    if not tf.config.list_physical_devices('GPU'):
        lingpipe.use_virtual_devices(flags.num_partitions)
    data = hub_inputs.InstructionInput.Params().Set(
        files=flags.files, batch_size=flags.batch_size, sequence_length=flags.sequence_length,
        tokenizer=hub_tokenizer.KerasHubTokenizer.Params().Set(preset=flags.preset)).Instantiate()
    batches = data.training_dataset().map(lambda inputs, labels, weights, num_bytes: (inputs, labels, weights))

    pipe = lingpipe.GPipeLayer.from_preset(
        flags.preset, preprocessor=None, num_partitions=flags.num_partitions, num_micro_batches=4, schedule='1f1b')
    model = lingpipe.PipelineModel(pipe)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction='mean_with_sample_weight')
    model.compile(keras.optimizers.AdamW(flags.learning_rate), loss)
    history = model.fit(
        batches, steps_per_epoch=max(1, data.num_examples // flags.batch_size), epochs=flags.epochs, shuffle=False,
        verbose=2)

    tuned = pipe.model  # the task of KerasHub, whose weights the pipeline trains
    tuned.preprocessor = keras_hub.models.CausalLMPreprocessor.from_preset(flags.preset)
    tuned.save_to_preset(flags.save)
    return history.history


if __name__ == '__main__':
    main()
