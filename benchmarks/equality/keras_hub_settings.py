"""Small settings of KerasHub's backbones for `keras_hub.py`: as few layers and channels as each class allows."""

from typing import NamedTuple


class Make(NamedTuple):
    """A part of KerasHub that is made before the backbone that takes it.

    Attributes:
        name: what it is called under `keras_hub`, 'models.ResNetBackbone',
        or the module and the name of what is not public.
        arguments: dict of its arguments.
    """

    name: str
    arguments: dict


class Setting(NamedTuple):
    """How to try one class.

    Attributes:
        arguments: dict of what its constructor takes; `Make` stands for a part.
        inputs: dict from the names of inputs to the shape `[...]` of one example,
        or to a nested list that is the same in every
            example; for inputs that are not named here, open sizes are 8.
        folder: where the class is under `keras_hub`.
    """

    arguments: dict
    inputs: dict = {}
    folder: str = 'models'


_TOKENS = {'vocabulary_size': 10}
_ENCODER = dict(_TOKENS, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
_STILL = dict(_ENCODER, dropout=0.0)
_BERT = dict(_STILL, max_sequence_length=8)
_DECODER = dict(
    _TOKENS, num_layers=2, num_query_heads=4, num_key_value_heads=2, hidden_dim=16, intermediate_dim=16)
_EXPERTS = {'num_experts': 4, 'top_k': 2}
_SMALL_IMAGE = {'image_shape': (32, 32, 3)}
_VISION = {'num_layers': 2, 'num_heads': 2, 'hidden_dim': 8, 'intermediate_dim': 16}
_VIT = dict(_VISION, **_SMALL_IMAGE, patch_size=8)
_TEXT = dict(_ENCODER, embedding_dim=8, max_sequence_length=8)
_GEMMA = dict(
    _TOKENS, num_layers=2, num_query_heads=2, num_key_value_heads=1, hidden_dim=8, intermediate_dim=16, head_dim=4)
_DELTA_NET = {
    'head_dim': 8, 'layer_types': ['linear_attention', 'full_attention'], 'linear_num_key_heads': 2,
    'linear_num_value_heads': 2,
    'linear_key_head_dim': 4, 'linear_value_head_dim': 4}
_T5_GEMMA = dict(
    _TOKENS, encoder_hidden_dim=8, encoder_intermediate_dim=16, encoder_num_layers=2, encoder_num_attention_heads=2,
    encoder_num_key_value_heads=1, encoder_head_dim=4, encoder_layer_types=['sliding_attention', 'full_attention'],
    decoder_hidden_dim=8, decoder_intermediate_dim=16, decoder_num_layers=2, decoder_num_attention_heads=2,
    decoder_num_key_value_heads=1, decoder_head_dim=4, decoder_layer_types=['sliding_attention', 'full_attention'],
    sliding_window=4)
_RES_NET = Make('models.ResNetBackbone', {
    'input_conv_filters': [64], 'input_conv_kernel_sizes': [7], 'stackwise_num_filters': [64, 4, 8, 8],
    'stackwise_num_blocks': [1, 1, 1, 1],
    'stackwise_num_strides': [1, 2, 2, 2], 'block_type': 'basic_block', 'image_shape': (64, 64, 3)})
_MIX_TRANSFORMER = dict(
    **_SMALL_IMAGE, layerwise_depths=[1, 1], num_layers=2, layerwise_num_heads=[1, 2], layerwise_sr_ratios=[2, 1],
    max_drop_path_rate=0.0, layerwise_patch_sizes=[7, 3], layerwise_strides=[4, 2], hidden_dims=[8, 16])
_HG_NET = dict(
    depths=[1, 1], embedding_size=8, hidden_sizes=[8, 16], stem_channels=[3, 8, 8], hidden_act='relu',
    use_learnable_affine_block=True, stackwise_stage_filters=[(8, 8, 8, 1, 1, 3), (8, 8, 16, 1, 1, 3)],
    apply_downsample=[False, True], use_lightweight_conv_block=[False, True], **_SMALL_IMAGE)
_DINO = dict(_VISION, **_SMALL_IMAGE, patch_size=8)

SETTINGS = {
    'AlbertBackbone': Setting(dict(_BERT, embedding_dim=4)),
    'BASNetBackbone': Setting({'image_encoder': Make(_RES_NET.name, {
        name: value for name, value in _RES_NET.arguments.items() if name != 'image_shape'}), 'num_classes': 1,
        'image_shape': (64, 64, 3), 'projection_filters': 64}),
    'BLIP2Backbone': Setting({
        'vision_encoder': Make('models.BLIP2VisionEncoder', dict(
            _VISION, image_size=16, patch_size=8, use_patch_bias=True, use_class_token=True, use_mha_bias=True,
            use_mlp_bias=True,
            dropout_rate=0.0, layer_norm_epsilon=1e-6, initializer_range=0.02)),
        'qformer': Make('models.BLIP2QFormer', dict(
            _VISION, num_query_tokens=4, vision_dim=8, cross_attention_frequency=2, dropout=0.0,
            layer_norm_epsilon=1e-6)),
        'language_model': Make('models.BLIP2CustomOPT', dict(
            _STILL, num_query_tokens=4, max_sequence_length=16, qformer_hidden_dim=8))}),
    'BartBackbone': Setting(_BERT),
    'BertBackbone': Setting(_BERT),
    'BloomBackbone': Setting(_STILL),
    'CLIPBackbone': Setting({
        'vision_encoder': Make('models.CLIPVisionEncoder', _VIT), 'text_encoder': Make('models.CLIPTextEncoder', _TEXT),
        'projection_dim': 8}),
    'CSPNetBackbone': Setting(dict(
        **_SMALL_IMAGE, stem_filters=4, stem_kernel_size=3, stem_strides=1, stackwise_depth=[1, 1],
        stackwise_strides=[1, 2],
        stackwise_num_filters=[4, 8], block_type='dark_block', stage_type='dark', stem_padding='same')),
    'DFineBackbone': Setting({
        'backbone': Make('models.HGNetV2Backbone', dict(
            _HG_NET, depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16],
            stackwise_stage_filters=[(8, 8, 8, 1, 1, 3), (8, 8, 8, 1, 1, 3), (8, 8, 16, 1, 1, 3), (16, 8, 16, 1, 1, 3)],
            apply_downsample=[False, True, True, True], use_lightweight_conv_block=[False, False, True, True],
            image_shape=(64, 64, 3), out_features=['stage3', 'stage4'])),
        'decoder_in_channels': [8, 8], 'encoder_hidden_dim': 8, 'num_denoising': 0, 'num_labels': 4, 'hidden_dim': 8,
        'learn_initial_query': False,
        'num_queries': 6, 'anchor_image_size': (64, 64), 'feat_strides': [16, 32], 'num_feature_levels': 2,
        'encoder_in_channels': [16, 16],
        'encode_proj_layers': [1], 'num_attention_heads': 2, 'encoder_ffn_dim': 16, 'num_encoder_layers': 1,
        'hidden_expansion': 0.5,
        'depth_multiplier': 0.5, 'eval_idx': -1, 'num_decoder_layers': 2, 'decoder_attention_heads': 2,
        'decoder_ffn_dim': 16,
        'decoder_n_points': [2, 2], 'lqe_hidden_dim': 8, 'num_lqe_layers': 2, 'out_features': ['stage3', 'stage4'],
        'image_shape': (64, 64, 3),
        'seed': 0}),
    'DINOV2Backbone': Setting(dict(_DINO, position_embedding_shape=(64, 64, 3), num_register_tokens=2)),
    'DINOV3Backbone': Setting(_DINO),
    'DebertaV3Backbone': Setting(dict(_BERT, bucket_size=4)),
    'DeepLabV3Backbone': Setting({
        'image_encoder': _RES_NET, 'projection_filters': 4, 'low_level_feature_key': 'P2',
        'spatial_pyramid_pooling_key': 'P4',
        'upsampling_size': 4, 'dilation_rates': [2, 4], 'image_shape': (64, 64, 3)}),
    'DeiTBackbone': Setting(_VIT),
    'DenseNetBackbone': Setting(dict(**_SMALL_IMAGE, stackwise_num_repeats=[1, 1], growth_rate=4)),
    'DepthAnythingBackbone': Setting({
        'image_encoder': Make('models.DINOV2Backbone', dict(
            _DINO, num_layers=4, position_embedding_shape=(64, 64, 3), image_shape=(64, 64, 3))),
        'reassemble_factors': [4, 2, 1, 0.5], 'neck_hidden_dims': [4, 4, 8, 8], 'fusion_hidden_dim': 8,
        'head_hidden_dim': 4, 'head_in_index': -1,
        'feature_keys': ['stage1', 'stage2', 'stage3', 'stage4']}),
    'DistilBertBackbone': Setting(_BERT),
    'ESMBackbone': Setting(dict(_STILL, max_sequence_length=8)),
    'EdRecBackbone': Setting({
        'vocab_size': 10, 'num_layers_enc': 2, 'num_layers_dec': 2, 'hidden_dim': 8, 'intermediate_dim': 16,
        'num_heads': 2}),
    'EfficientNetBackbone': Setting({
        'input_shape': (32, 32, 3), 'stackwise_kernel_sizes': [3, 3], 'stackwise_num_repeats': [1, 1],
        'stackwise_input_filters': [8, 8],
        'stackwise_output_filters': [8, 8], 'stackwise_expansion_ratios': [1, 2],
        'stackwise_squeeze_and_excite_ratios': [0.0, 0.25],
        'stackwise_strides': [1, 2], 'stackwise_block_types': ['fused', 'unfused'],
        'stackwise_force_input_filters': [0, 0],
        'stackwise_nores_option': [False, False], 'stackwise_width_coefficients': [1.0, 1.0],
        'stackwise_depth_coefficients': [1.0, 1.0],
        'dropout': 0.0, 'num_features': 16}),
    'ElectraBackbone': Setting({
        'vocab_size': 10, 'num_layers': 2, 'num_heads': 2, 'hidden_dim': 8, 'embedding_dim': 8, 'intermediate_dim': 16,
        'dropout': 0.0,
        'max_sequence_length': 8}),
    'FNetBackbone': Setting(dict(
        _TOKENS, num_layers=2, hidden_dim=8, intermediate_dim=16, dropout=0.0, max_sequence_length=8)),
    'FalconBackbone': Setting(dict(_TOKENS, num_layers=2, num_attention_heads=2, hidden_dim=8, intermediate_dim=32)),
    'FluxBackbone': Setting(
        {'input_channels': 4, 'hidden_size': 16, 'mlp_ratio': 2.0, 'num_heads': 2, 'depth': 1,
        'depth_single_blocks': 1, 'axes_dim': [2, 4, 2],
             'theta': 10_000, 'use_bias': True, 'guidance_embed': True, 'image_shape': (8, 4), 'text_shape': (6, 4),
             'image_ids_shape': (8, 3),
             'text_ids_shape': (6, 3), 'y_shape': (8,)}),
    'Gemma3Backbone': Setting(
        dict(_GEMMA, image_size=16, vision_encoder=Make('models.Gemma3VisionEncoder', dict(
            _VISION, image_size=16, patch_size=4, output_dim=8, pool_size=2))),
        {'images': (1, 16, 16, 3), 'token_ids': (12,), 'padding_mask': (12,), 'vision_indices': [2, 3, 4, 5],
             'vision_mask': [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]}),
    'Gemma3nBackbone': Setting({
        'text_vocab_size': 10, 'text_hidden_size': 8, 'num_hidden_layers': 2, 'pad_token_id': 0,
        'num_attention_heads': 2, 'num_key_value_heads': 1,
        'head_dim': 4, 'intermediate_size': [16, 16], 'hidden_activation': 'gelu_approximate',
        'layer_types': ['sliding_attention', 'full_attention'], 'sliding_window': 4, 'rope_theta': 10_000.0,
        'max_position_embeddings': 16,
        'vocab_size_per_layer_input': 10, 'hidden_size_per_layer_input': 2, 'altup_num_inputs': 2, 'laurel_rank': 1}),
    'Gemma4Backbone': Setting(
        dict(_GEMMA, image_size=16, sliding_window_size=4, sliding_window_pattern=2, vision_encoder=Make(
            'models.Gemma4VisionEncoder', dict(
                _VISION, image_size=16, patch_size=4, num_key_value_heads=2, head_dim=4, output_dim=8, pool_size=2))),
        {'pixel_values': (1, 16, 48), 'token_ids': (12,), 'padding_mask': (12,), 'position_ids': list(range(12)),
             'pixel_position_ids': [[[column, row] for row in range(4) for column in range(4)]], 'vision_indices': [2,
             3, 4, 5],
             'vision_mask': [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]}),
    'GemmaBackbone': Setting(_GEMMA),
    'GPT2Backbone': Setting(_BERT),
    'GPTNeoXBackbone': Setting(dict(_BERT, rotary_percentage=0.5)),
    'GptOssBackbone': Setting(dict(_DECODER, **_EXPERTS, sliding_window=4)),
    'HGNetV2Backbone': Setting(_HG_NET),
    'Llama3Backbone': Setting(_DECODER),
    'LlamaBackbone': Setting(_DECODER),
    'MetaCLIP2Backbone': Setting({
        'vision_encoder': Make('models.MetaCLIP2VisionEncoder', _VIT),
        'text_encoder': Make('models.MetaCLIP2TextEncoder', _TEXT),
        'projection_dim': 8}),
    'MiTBackbone': Setting(_MIX_TRANSFORMER),
    'MistralBackbone': Setting(dict(_DECODER, sliding_window=4)),
    'MixtralBackbone': Setting(dict(_DECODER, **_EXPERTS, sliding_window=4)),
    'MobileNetBackbone': Setting(dict(
        stackwise_expansion=[[8, 8], [16]], stackwise_num_blocks=[2, 1], stackwise_num_filters=[[8, 8], [8]],
        stackwise_kernel_size=[[3, 3], [5]], stackwise_num_strides=[[2, 1], [1]], stackwise_se_ratio=[[None, 0.25],
        [0.25]],
        stackwise_activation=[['relu', 'relu'], ['hard_swish']], stackwise_padding=[[1, 1], [2]], output_num_filters=16,
        depthwise_filters=8, depthwise_stride=2, depthwise_residual=False, last_layer_filter=16, squeeze_and_excite=0.5,
        input_num_filters=8, **_SMALL_IMAGE)),
    'MobileNetV5Backbone': Setting(dict(
        stackwise_block_types=[['er'], ['uir', 'mqa']], stackwise_num_blocks=[1, 2], stackwise_num_filters=[[8], [8,
        8]],
        stackwise_strides=[[2], [2, 1]], stackwise_act_layers=[['relu'], ['relu', 'relu']],
        stackwise_exp_ratios=[[2.0], [2.0, 1.0]],
        stackwise_se_ratios=[[0.0], [0.0, 0.0]], stackwise_dw_kernel_sizes=[[0], [5, 3]],
        stackwise_dw_start_kernel_sizes=[[0], [0, 0]], stackwise_dw_end_kernel_sizes=[[0], [0, 0]],
        stackwise_exp_kernel_sizes=[[3], [0, 0]], stackwise_pw_kernel_sizes=[[1], [0, 0]], stackwise_num_heads=[[0],
        [0, 2]],
        stackwise_key_dims=[[0], [0, 4]], stackwise_value_dims=[[0], [0, 4]], stackwise_kv_strides=[[0], [0, 1]],
        stackwise_use_cpe=[[False], [False, False]], use_msfa=False, stem_size=8, num_features=16, **_SMALL_IMAGE)),
    'MoonshineBackbone': Setting(
        dict(_TOKENS, filter_dim=16, encoder_num_layers=1, decoder_num_layers=1, hidden_dim=16, intermediate_dim=16,
             encoder_num_heads=2, decoder_num_heads=2),
        {'encoder_input_values': (1600, 1), 'encoder_padding_mask': (1600,)}),
    'OPTBackbone': Setting(_BERT),
    'PARSeqBackbone': Setting(
        {'image_encoder': Make('models.ViTBackbone', dict(
            **_SMALL_IMAGE, patch_size=8, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=16, use_class_token=False)),
             'vocabulary_size': 10, 'max_label_length': 8, 'decoder_hidden_dim': 8, 'num_decoder_layers': 1,
             'num_decoder_heads': 2,
             'decoder_mlp_dim': 16, 'dropout_rate': 0.0, 'attention_dropout': 0.0}),
    'PaliGemmaBackbone': Setting(dict(
        _GEMMA, image_size=16, vit_patch_size=4, vit_num_heads=2, vit_hidden_dim=8, vit_num_layers=1,
        vit_intermediate_dim=16)),
    'Phi3Backbone': Setting(_DECODER),
    'Qwen3Backbone': Setting(dict(_DECODER, head_dim=4)),
    'Qwen3MoeBackbone': Setting(dict(_DECODER, **_EXPERTS, head_dim=4, moe_intermediate_dim=8)),
    'Qwen3_5Backbone': Setting(dict(_DECODER, **_DELTA_NET)),
    'Qwen3_5MoeBackbone': Setting(dict(
        {name: value for name, value in _DECODER.items() if name != 'intermediate_dim'}, **_DELTA_NET, **_EXPERTS,
        moe_intermediate_dim=8, shared_expert_intermediate_size=8)),
    'QwenBackbone': Setting(_DECODER),
    'QwenMoeBackbone': Setting(dict(_DECODER, **_EXPERTS, moe_intermediate_dim=8, shared_expert_intermediate_dim=8)),
    'RQVAEBackbone': Setting({
        'input_dim': 8, 'encoder_layer_dims': [8, 4], 'output_dim': 4, 'decoder_layer_dims': [8, 8],
        'num_embeddings': 4, 'num_quantizers': 2}, folder='src.models.rqvae.rqvae_backbone'),
    'RWKV7Backbone': Setting(
        dict(_TOKENS, hidden_size=16, head_size=8, num_layers=2, intermediate_dim=16, gate_lora=4, mv_lora=4,
        aaa_lora=4,
             decay_lora=4), {'token_ids': (16,), 'padding_mask': (16,)}),
    'ResNetBackbone': Setting(dict(_RES_NET.arguments, stackwise_num_filters=[64, 8], stackwise_num_blocks=[1, 1],
                                   stackwise_num_strides=[1, 2], **_SMALL_IMAGE)),
    'RetinaNetBackbone': Setting({
        'image_encoder': _RES_NET, 'min_level': 3, 'max_level': 5, 'use_p5': False, 'use_fpn_batch_norm': True,
        'image_shape': (64, 64, 3)}),
    'RobertaBackbone': Setting(_BERT),
    'RoformerV2Backbone': Setting(dict(_STILL, head_size=4)),
    'SAMBackbone': Setting(
        {'image_encoder': Make('models.ViTDetBackbone', dict(
            hidden_size=8, num_layers=2, intermediate_dim=16, num_heads=2, global_attention_layer_indices=[1],
            patch_size=8,
            num_output_channels=8, window_size=2, **_SMALL_IMAGE)),
             'prompt_encoder': Make('layers.SAMPromptEncoder', {
                 'hidden_size': 8, 'image_embedding_size': (4, 4), 'input_image_size': (32, 32),
                 'mask_in_channels': 4}),
             'mask_decoder': Make('layers.SAMMaskDecoder', {
                 'num_layers': 1, 'hidden_size': 8, 'intermediate_dim': 16, 'num_heads': 2, 'embedding_dim': 8,
                 'num_multimask_outputs': 3,
                 'iou_head_depth': 2, 'iou_head_hidden_dim': 8})},
        {'points': (1, 2), 'labels': [1.0], 'boxes': (1, 2, 2), 'masks': (0, 16, 16, 1)}),
    'SAM3PromptableConceptBackbone': Setting(
        {'vision_encoder': Make('layers.SAM3VisionEncoder', {
            'image_shape': (64, 64, 3), 'patch_size': 8, 'num_layers': 2, 'hidden_dim': 8, 'intermediate_dim': 16,
            'num_heads': 2, 'fpn_hidden_dim': 8,
            'fpn_scale_factors': [4.0, 2.0, 1.0, 0.5], 'pretrain_image_shape': (32, 32, 3), 'window_size': 2,
            'global_attn_indexes': [1]}),
             'text_encoder': Make('layers.SAM3TextEncoder', dict(_ENCODER, embedding_dim=8)),
             'geometry_encoder': Make('layers.SAM3GeometryEncoder', {
                 'num_layers': 1, 'hidden_dim': 8, 'intermediate_dim': 16, 'num_heads': 2, 'roi_size': 3,
                 'dropout_rate': 0.0}),
             'detr_encoder': Make('layers.SAM3DetrEncoder', {
                 'num_layers': 1, 'hidden_dim': 8, 'intermediate_dim': 16, 'num_heads': 2, 'dropout_rate': 0.0}),
             'detr_decoder': Make('layers.SAM3DetrDecoder', {
                 'image_shape': (64, 64, 3), 'patch_size': 8, 'num_layers': 1, 'hidden_dim': 8, 'intermediate_dim': 16,
                 'num_heads': 2, 'num_queries': 4,
                 'dropout_rate': 0.0}),
             'mask_decoder': Make('layers.SAM3MaskDecoder', {
                 'num_upsampling_stages': 3, 'hidden_dim': 8, 'num_heads': 2, 'dropout_rate': 0.0})},
        {'boxes': (1, 5), 'box_labels': [1]}),
    'SegFormerBackbone': Setting({
        'image_encoder': Make('models.MiTBackbone', dict(
            _MIX_TRANSFORMER, layerwise_depths=[1, 1, 1, 1], num_layers=4, layerwise_num_heads=[1, 1, 2, 2],
            layerwise_sr_ratios=[4, 2, 1, 1], layerwise_patch_sizes=[7, 3, 3, 3], layerwise_strides=[4, 2, 2, 2],
            hidden_dims=[4, 8, 12, 16], image_shape=(64, 64, 3))), 'projection_filters': 8}),
    'SigLIPBackbone': Setting({
        'vision_encoder': Make('models.SigLIPVisionEncoder', _VIT), 'text_encoder': Make('models.SigLIPTextEncoder',
        _TEXT)}),
    'SmolLM3Backbone': Setting(dict(
        _TOKENS, hidden_dim=16, intermediate_dim=16, num_layers=2, num_attention_heads=4, num_key_value_heads=2,
        attention_bias=False, attention_dropout=0.0, rope_layer_enabled_list=[True, False],
        layer_types=['full_attention'] * 2,
        mlp_bias=False, layer_norm_epsilon=1e-5, max_position_embeddings=16, rope_theta=10_000.0,
        partial_rotary_factor=1.0)),
    'StableDiffusion3Backbone': Setting(
        {'mmdit_patch_size': 2, 'mmdit_hidden_dim': 16, 'mmdit_num_layers': 2, 'mmdit_num_heads': 2,
        'mmdit_position_size': 16,
             'mmdit_qk_norm': None, 'mmdit_dual_attention_indices': None,
             'vae': Make('src.models.vae.vae_backbone.VAEBackbone', {
                 'encoder_num_filters': [32, 32, 32, 32], 'encoder_num_blocks': [1, 1, 1, 1],
                 'decoder_num_filters': [32, 32, 32, 32],
                 'decoder_num_blocks': [1, 1, 1, 1], 'sampler_method': 'mode'}),
             'clip_l': Make('models.CLIPTextEncoder', dict(_TEXT, name='clip_l', intermediate_output_index=0)),
             'clip_g': Make('models.CLIPTextEncoder', dict(_TEXT, name='clip_g', intermediate_output_index=0)),
             'image_shape': (32, 32, 3)},
        {'num_steps': 2, 'guidance_scale': 3.0}),
    'SwinTransformerBackbone': Setting({
        'image_shape': (16, 16, 3), 'embed_dim': 8, 'depths': (2, 1), 'num_heads': (2, 2), 'window_size': 2,
        'patch_size': 2, 'drop_path': 0.0}),
    'T5Backbone': Setting(_STILL),
    'T5GemmaBackbone': Setting(_T5_GEMMA),
    'T5Gemma2Backbone': Setting(_T5_GEMMA),
    'VAEBackbone': Setting({
        'encoder_num_filters': [32, 32], 'encoder_num_blocks': [1, 1], 'decoder_num_filters': [32, 32],
        'decoder_num_blocks': [1, 1],
        'sampler_method': 'mode'}, {'images': (16, 16, 3)}, 'src.models.vae.vae_backbone'),
    'VGGBackbone': Setting(dict(stackwise_num_repeats=[1, 1], stackwise_num_filters=[4, 8], **_SMALL_IMAGE)),
    'ViTBackbone': Setting(dict(**_SMALL_IMAGE, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16)),
    'ViTDetBackbone': Setting(dict(
        **_SMALL_IMAGE, patch_size=8, hidden_size=8, num_layers=2, global_attention_layer_indices=[1],
        intermediate_dim=16,
        num_heads=2, num_output_channels=4, window_size=2)),
    'VideoPrismBackbone': Setting({
        'num_frames': 2, 'patch_size': 8, 'hidden_dim': 8, 'intermediate_dim': 16, 'num_heads': 2,
        'num_spatial_layers': 1, 'num_temporal_layers': 1,
        'num_auxiliary_layers': 1, 'vocabulary_size': 10, 'num_text_layers': 1, 'image_shape': (16, 16, 3)}),
    'WhisperBackbone': Setting(
        dict(_STILL, max_encoder_sequence_length=16, max_decoder_sequence_length=8), {'encoder_features': (16, 80)}),
    'XLMRobertaBackbone': Setting(_BERT),
    'XLNetBackbone': Setting(_STILL),
    'XceptionBackbone': Setting(dict(**_SMALL_IMAGE, stackwise_conv_filters=[[4, 8], [8, 8]], stackwise_pooling=[True,
        False])),
}
