"""Text generation by a Keras model in a pipeline: continuations of prompts, or targets of sources."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.input import hub_tokenizer
from lingpipe.models import pipelined_generation, prompted_texts
from lingpipe.models.sampling import Sampling
from lingpipe.pipeline import gpipe_layer


def reads_sources(input_spec: Any) -> bool:
    """Returns whether an input of some `tf.TensorSpec` has sources, without which no text can be generated."""
    return isinstance(input_spec, dict) and 'encoder_token_ids' in input_spec


def text_writer(body: gpipe_layer.GPipeLayer, tokenizer: hub_tokenizer.KerasHubTokenizer, input_spec: Any,
                sampling: Sampling, read: Callable = variable_placement.read_variable) -> Any:
    """Returns `TargetTexts` for a model that reads sources, else `PromptedTexts`.

    Args:
        body: built `GPipeLayer`.
        tokenizer: tokenizer of the model's input.
        input_spec: nest of `tf.TensorSpec` `[batch, length]` of the input.
        sampling: `Sampling`.
        read: function that returns the value to use for a Keras variable, such as its moving average.

    Raises:
        ValueError: the body does not generate text, or cannot sample with these settings.
    """
    if reads_sources(input_spec):
        lengths = [input_spec[f'{side}_token_ids'].shape[1] for side in ('encoder', 'decoder')]
        return TargetTexts(body, tokenizer, *lengths, sampling, read)
    return prompted_texts.PromptedTexts(body, tokenizer, tf.nest.flatten(input_spec)[0].shape[1], sampling, read)


class TargetTexts:
    """Writes the targets of texts by a sequence-to-sequence model of KerasHub, as its `generate` does.

    Sources are divided into as many groups as there are partitions; see `pipelined_generation.PipelinedGeneration`.

    Args:
        body: built `GPipeLayer` of a KerasHub task.
        tokenizer: tokenizer of the model's input.
        source_length: number of tokens of the longest source.
        target_length: number of tokens of the longest target.
        sampling: `Sampling`.
        read: function that returns the value to use for a Keras variable, such as its moving average.
    """

    def __init__(self, body: gpipe_layer.GPipeLayer, tokenizer: hub_tokenizer.KerasHubTokenizer, source_length: int,
                 target_length: int, sampling: Sampling, read: Callable = variable_placement.read_variable) -> None:
        self._task, self._tokenizer = body.model, tokenizer
        self._source_length, self._target_length = source_length, target_length
        self._preprocessor = tokenizer.seq_2_seq_preprocessor(source_length, target_length)
        self._sampler = sampling.keras_hub_sampler(body.output_of_one_example.shape[-1])
        self._states = pipelined_generation.states_of(self._sampler)
        num_groups = len({stage.device for stage in body.stages})
        self._generate = pipelined_generation.PipelinedGeneration(
            self._task, body.stages, num_groups, body.jit_compile, read)

    def texts(self, sources: Sequence[str], num_tokens: int) -> list[str]:
        """Returns the targets of texts, the same ones in every call.

        Args:
            sources: the texts.
            num_tokens: largest number of tokens of a target; there are fewer if the model ends it, or has no room.

        Raises:
            ValueError: a source is empty or too long.
        """
        self._require_room(sources)
        inputs = self._preprocessor.generate_preprocess(list(sources))
        start = int(np.sum(inputs['decoder_padding_mask'], 1).min())
        length = min(self._target_length, start + num_tokens)
        inputs = {name: part[:, :length] if name.startswith('decoder') else part for name, part in inputs.items()}
        variable_placement.assign(self._states)
        with pipelined_generation.replaced(self._task, {'sampler': self._sampler}):
            found = self._generate(inputs, self._stop_ids())
        return [str(text) for text in self._preprocessor.generate_postprocess(found)]

    def shown(self, source: str, target: str) -> str:
        """Returns a line with both."""
        return f'{source} -> {target}'

    def _require_room(self, sources):
        num_special = int(np.sum(self._preprocessor.generate_preprocess([''])['encoder_padding_mask']))
        room = self._source_length - num_special
        for number, source in enumerate(sources, 1):
            num_tokens = len(self._tokenizer.encode(tf.constant(source)))
            if not 0 < num_tokens <= room:
                raise ValueError(f'Prompt {number} has {num_tokens} tokens, but the model reads 1 to {room}. Give a '
                                 'text of so many, or train with a larger input.sequence_length.')

    def _stop_ids(self):
        """Returns the tokens that end a text, as in KerasHub; some of its models have two."""
        tokenizer = self._preprocessor.tokenizer
        return tuple(getattr(tokenizer, name) for name in ('end_token_id', 'end_token2_id') if hasattr(tokenizer, name))
