"""Keras layers with Params."""

from lingpipe.layers.base_layer import BaseLayer
from lingpipe.layers.keras_params import KerasParams

__all__ = ['BaseLayer', 'KerasParams']
