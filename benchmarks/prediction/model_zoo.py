"""Functions that make workloads of public models, by name; their packages are imported when called.

A model's inputs follow from its configuration, its loss from its task: what the model returns as
`loss` where it takes labels, else the mean square of its outputs.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["MODELS"]

Make = Callable[[], dict[str, Any]]

_BATCH = 2
_LENGTH = 128


def _step(model: nn.Module, inputs: Any, loss: Callable[[Any], torch.Tensor]) -> dict[str, Any]:
    return {"model": model, "inputs": inputs, "loss": loss, "optimizer": torch.optim.AdamW}


def _mean_square(output: Any) -> torch.Tensor:
    """Of all floating tensors that a model returns."""
    tensors = [t for t in _tensors(output) if t.is_floating_point() and t.requires_grad]
    return torch.stack([t.float().square().mean() for t in tensors]).sum()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    if hasattr(value, "__dict__") and not isinstance(value, nn.Module):
        return _tensors(list(vars(value).values()))
    return []


# ------------------------------------------------------------------------------- transformers


def _transformers(name: str, **sizes: Any) -> Make:
    """A model of transformers by the name of its class, in its default size but for `sizes`."""

    def make() -> dict[str, Any]:
        package = importlib.import_module("transformers")
        kind = getattr(package, name)
        given = {key: _config(package, value) for key, value in sizes.items()}
        config = kind.config_class(**given)
        model = kind(config)
        inputs = _transformers_inputs(model, config, name)
        return _step(model, inputs, _own_loss)

    return make


def _config(package: Any, value: Any) -> Any:
    """("ResNet", {...}) stands for `ResNetConfig(...)`."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
        given = {key: _config(package, each) for key, each in value[1].items()}
        return getattr(package, f"{value[0]}Config")(**given)
    return value


def _own_loss(output: Any) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    return loss if isinstance(loss, torch.Tensor) else _mean_square(output)


def _found(config: Any, *names: str) -> Any:
    """The first of these that a configuration, or one within it, has."""
    parts = ("vision_config", "backbone_config", "text_config", "encoder")
    for each in (config, *(getattr(config, part, None) for part in parts)):
        for name in names:
            value = getattr(each, name, None)
            if value is not None:
                return value
    return None


def _transformers_inputs(model: nn.Module, config: Any, name: str) -> dict[str, Any]:
    taken = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {}
    main = getattr(model, "main_input_name", "input_ids")
    images = _images(config, name)
    if main in ("pixel_values", "pixel_values_videos") or "pixel_values" in taken:
        inputs["pixel_values" if "pixel_values" in taken else main] = images
    if "input_ids" in taken:
        vocabulary = int(_found(config, "vocab_size") or 1000)
        longest = int(_found(config, "max_position_embeddings", "n_positions") or _LENGTH)
        length = 16 if "pixel_values" in inputs else min(_LENGTH, longest - 2)
        inputs["input_ids"] = torch.randint(3, min(vocabulary, 1000), (_BATCH, length))
        if "attention_mask" in taken:
            inputs["attention_mask"] = torch.ones(_BATCH, length, dtype=torch.long)
    if main == "input_values":
        shape = (config.max_length, config.num_mel_bins) if "AST" in name else (16_000,)
        inputs["input_values"] = torch.randn(_BATCH, *shape)
    if main == "input_features":
        frames = 2 * config.max_source_positions if "Whisper" in name else 400
        bins = getattr(config, "num_mel_bins", None) or config.feature_projection_input_dim
        shape = (bins, frames) if "Whisper" in name else (frames, bins)
        inputs["input_features"] = torch.randn(_BATCH, *shape)
    if "return_loss" in taken:
        inputs["return_loss"] = True
    return {**inputs, **_extras(config, name, taken), **_labels(config, name, inputs, images)}


def _images(config: Any, name: str) -> torch.Tensor:
    size = _found(config, "image_size", "crop_size") or 224
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    if any(word in name for word in ("Detection", "Mask2", "MaskFormer", "OneFormer", "UperNet")):
        height, width = max(height, 512), max(width, 512)
    if "SuperPoint" in name or "LoFTR" in name:
        height, width = 480, 640
    if "DepthPro" in name:
        height = width = 1536
    channels = int(_found(config, "num_channels") or 3)
    frames = _found(config, "num_frames", "frames_per_clip")
    if "LoFTR" in name:
        return torch.randn(_BATCH, 2, 1, height, width)
    if frames:
        return torch.randn(_BATCH, frames, channels, height, width)
    return torch.randn(_BATCH, channels, height, width)


def _extras(config: Any, name: str, taken: Any) -> dict[str, Any]:
    if name == "OneFormerForUniversalSegmentation":
        return {"task_inputs": torch.randint(1, 99, (_BATCH, config.task_seq_len))}
    if name in ("SamModel", "Sam2Model"):
        return {"input_points": torch.rand(_BATCH, 1, 2, 2) * 100, "multimask_output": False}
    if name == "PromptDepthAnythingForDepthEstimation":
        return {"prompt_depth": torch.rand(_BATCH, 1, 192, 256)}
    if name == "GroundingDinoForObjectDetection":
        return {"token_type_ids": torch.zeros(_BATCH, 16, dtype=torch.long)}
    if name == "WhisperForConditionalGeneration":
        return {"decoder_input_ids": torch.randint(3, 999, (_BATCH, 64))}
    if "decoder_input_ids" in taken and "labels" not in taken:
        return {"decoder_input_ids": torch.randint(3, 999, (_BATCH, _LENGTH // 2))}
    return {}


def _labels(config: Any, name: str, inputs: dict[str, Any], images: torch.Tensor) -> dict[str, Any]:
    ids = inputs.get("input_ids")
    if name.endswith(("ImageClassification", "VideoClassification", "SequenceClassification")):
        return {"labels": torch.zeros(_BATCH, dtype=torch.long)}
    if name.endswith(("MaskedLM", "CausalLM", "LMHeadModel")):
        return {"labels": ids}
    if name.endswith("ConditionalGeneration") and "pixel_values" not in inputs:
        return {"labels": torch.randint(3, 999, (_BATCH, 64))}
    if name.endswith("SemanticSegmentation"):
        return {"labels": torch.zeros(_BATCH, *images.shape[-2:], dtype=torch.long)}
    if name.endswith("ForCTC"):
        return {"labels": torch.randint(1, 30, (_BATCH, 12))}
    if name.endswith("AudioClassification"):
        return {"labels": torch.zeros(_BATCH, dtype=torch.long)}
    if name.endswith(("UniversalSegmentation", "InstanceSegmentation")) and "OneFormer" not in name:
        masks = torch.zeros(2, *images.shape[-2:])
        return {"mask_labels": [masks] * _BATCH, "class_labels": [torch.tensor([0, 1])] * _BATCH}
    if name.endswith("ObjectDetection") and not name.startswith(("Owl", "Grounding")):
        boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2], [0.3, 0.3, 0.1, 0.1]])
        target = {"class_labels": torch.tensor([0, 1]), "boxes": boxes}
        return {"labels": [target] * _BATCH}
    return {}


_RESNET = ("ResNet", {"out_features": ["stage4"]})
_RESNET_3 = ("ResNet", {"out_features": ["stage2", "stage3", "stage4"]})
_NO_TIMM = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
_STAGES = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
_DINO = ("Dinov2", {**_STAGES, "reshape_hidden_states": False, "num_hidden_layers": 4})
_SMALL_DINO = {
    "model_type": "dinov2",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "use_swiglu_ffn": False,
}

_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "ResNetForImageClassification": {},
    "ViTForImageClassification": {},
    "DeiTForImageClassification": {},
    "BeitForImageClassification": {"use_relative_position_bias": True},
    "SwinForImageClassification": {},
    "Swinv2ForImageClassification": {},
    "ConvNextForImageClassification": {},
    "ConvNextV2ForImageClassification": {},
    "MobileNetV1ForImageClassification": {},
    "MobileNetV2ForImageClassification": {},
    "MobileViTForImageClassification": {},
    "EfficientNetForImageClassification": {},
    "RegNetForImageClassification": {},
    "LevitForImageClassification": {},
    "Dinov2ForImageClassification": {},
    "CvtForImageClassification": {},
    "PvtV2ForImageClassification": {},
    "PoolFormerForImageClassification": {},
    "FocalNetForImageClassification": {},
    "HieraForImageClassification": {},
    "BitForImageClassification": {},
    "HGNetV2ForImageClassification": {
        "hidden_sizes": [128, 512, 1024, 2048],
        "stage_out_channels": [128, 512, 1024, 2048],
    },
    "MobileViTV2ForImageClassification": {},
    "CLIPModel": {},
    "SiglipModel": {},
    "DetrForObjectDetection": {**_NO_TIMM, "backbone_config": _RESNET},
    "ConditionalDetrForObjectDetection": {**_NO_TIMM, "backbone_config": _RESNET},
    "DeformableDetrForObjectDetection": {**_NO_TIMM, "backbone_config": _RESNET_3},
    "DabDetrForObjectDetection": {**_NO_TIMM, "backbone_config": _RESNET},
    "TableTransformerForObjectDetection": {**_NO_TIMM, "backbone_config": _RESNET},
    "YolosForObjectDetection": {"num_labels": 3},
    "RTDetrForObjectDetection": {},
    "RTDetrV2ForObjectDetection": {},
    "DFineForObjectDetection": {},
    "LwDetrForObjectDetection": {"projector_scale_factors": [1.0]},
    "OwlViTForObjectDetection": {},
    "Owlv2ForObjectDetection": {},
    "GroundingDinoForObjectDetection": {
        **_NO_TIMM,
        "backbone_config": ("Swin", {"out_features": ["stage2", "stage3", "stage4"]}),
    },
    "SegformerForSemanticSegmentation": {},
    "UperNetForSemanticSegmentation": {
        "backbone_config": ("Swin", _STAGES),
        "auxiliary_in_channels": 384,
    },
    "MaskFormerForInstanceSegmentation": {
        "backbone_config": ("Swin", _STAGES),
        "decoder_config": ("Detr", {**_NO_TIMM, "backbone_config": _RESNET}),
    },
    "Mask2FormerForUniversalSegmentation": {"backbone_config": ("Swin", _STAGES)},
    "OneFormerForUniversalSegmentation": {
        "backbone_config": ("Swin", _STAGES),
        "is_training": False,
    },
    "SamModel": {},
    "Sam2Model": {},
    "EomtForUniversalSegmentation": {"num_labels": 3},
    "BeitForSemanticSegmentation": {"image_size": 640, "out_indices": [3, 5, 7, 11]},
    "MobileNetV2ForSemanticSegmentation": {"num_labels": 3},
    "DPTForSemanticSegmentation": {"num_labels": 3},
    "CLIPSegForImageSegmentation": {},
    "DPTForDepthEstimation": {},
    "DepthAnythingForDepthEstimation": {
        "backbone_config": _DINO,
        "reassemble_hidden_size": 768,
    },
    "PromptDepthAnythingForDepthEstimation": {
        "backbone_config": _DINO,
        "reassemble_hidden_size": 768,
    },
    "ZoeDepthForDepthEstimation": {},
    "GLPNForDepthEstimation": {},
    "DepthProForDepthEstimation": {
        "image_model_config": _SMALL_DINO,
        "patch_model_config": _SMALL_DINO,
        "fov_model_config": _SMALL_DINO,
        "patch_size": 32,
        "fusion_hidden_size": 16,
        "intermediate_hook_ids": [1, 0],
        "intermediate_feature_dims": [16, 16],
        "scaled_images_ratios": [0.25, 0.5, 1],
        "scaled_images_overlap_ratios": [0.0, 0.2, 0.2],
        "scaled_images_feature_dims": [16, 16, 16],
    },
    "SuperPointForKeypointDetection": {},
    "EfficientLoFTRForKeypointMatching": {},
    "VideoMAEForVideoClassification": {},
    "TimesformerForVideoClassification": {},
    "VivitForVideoClassification": {},
    "VJEPA2ForVideoClassification": {"num_hidden_layers": 4, "pred_num_hidden_layers": 2},
    "BertForMaskedLM": {},
    "RobertaForSequenceClassification": {},
    "DistilBertForSequenceClassification": {},
    "AlbertForMaskedLM": {},
    "ElectraForMaskedLM": {},
    "DebertaV2ForMaskedLM": {},
    "ModernBertForMaskedLM": {},
    "XLNetLMHeadModel": {},
    "LongformerForMaskedLM": {},
    "BigBirdForMaskedLM": {},
    "GPT2LMHeadModel": {},
    "OPTForCausalLM": {},
    "GPTNeoXForCausalLM": {"num_hidden_layers": 4},
    "BloomForCausalLM": {"n_layer": 4},
    "FalconForCausalLM": {"num_hidden_layers": 4},
    "T5ForConditionalGeneration": {"decoder_start_token_id": 0},
    "BartForConditionalGeneration": {},
    "LlamaForCausalLM": {"num_hidden_layers": 4},
    "MistralForCausalLM": {"num_hidden_layers": 4},
    "Qwen2ForCausalLM": {"num_hidden_layers": 4},
    "Qwen3ForCausalLM": {"num_hidden_layers": 4},
    "Gemma2ForCausalLM": {"num_hidden_layers": 4},
    "PhiForCausalLM": {"num_hidden_layers": 4},
    "MixtralForCausalLM": {"num_hidden_layers": 2},
    "Qwen3MoeForCausalLM": {"num_hidden_layers": 2},
    "DeepseekV3ForCausalLM": {"num_hidden_layers": 4, "n_routed_experts": 16},
    "GptOssForCausalLM": {"num_hidden_layers": 2, "num_local_experts": 16},
    "MambaForCausalLM": {"num_hidden_layers": 4},
    "Mamba2ForCausalLM": {"num_hidden_layers": 4},
    "RwkvForCausalLM": {"num_hidden_layers": 4},
    "FNetForMaskedLM": {},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "PerceiverForMaskedLM": {},
    "FunnelForMaskedLM": {},
    "Wav2Vec2ForCTC": {"mask_time_prob": 0.0},
    "HubertForCTC": {"mask_time_prob": 0.0},
    "WhisperForConditionalGeneration": {},
    "ASTForAudioClassification": {},
    "Wav2Vec2BertForCTC": {"num_hidden_layers": 4, "mask_time_prob": 0.0},
    "TableTransformerModel": {**_NO_TIMM, "backbone_config": _RESNET},
}


# ------------------------------------------------------------------------------- diffusers


def _diffusers(name: str, inputs: Callable[[], dict[str, Any]], **sizes: Any) -> Make:
    def make() -> dict[str, Any]:
        model = getattr(importlib.import_module("diffusers"), name)(**sizes)
        return _step(model, inputs(), _mean_square)

    return make


def _latent(channels: int = 4, size: int = 64, **more: tuple[int, ...]) -> Callable[[], Any]:
    """Noisy images, the time, and further tensors by name."""

    def inputs() -> dict[str, Any]:
        found = {"sample": torch.randn(_BATCH, channels, size, size), "timestep": torch.tensor(5)}
        return found | {name: torch.randn(*shape) for name, shape in more.items()}

    return inputs


def _hidden(**more: Any) -> Callable[[], Any]:
    def inputs() -> dict[str, Any]:
        found = {"hidden_states": torch.randn(_BATCH, 4, 32, 32)}
        found["timestep"] = torch.randint(0, 1000, (_BATCH,))
        return found | {name: make() for name, make in more.items()}

    return inputs


def _flux_inputs() -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(1, 1024, 64),
        "encoder_hidden_states": torch.randn(1, 512, 4096),
        "pooled_projections": torch.randn(1, 768),
        "timestep": torch.ones(1),
        "img_ids": torch.zeros(1024, 3),
        "txt_ids": torch.zeros(512, 3),
        "guidance": torch.ones(1),
    }


def _random(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


_DIFFUSERS: dict[str, Make] = {
    "UNet2DModel": _diffusers("UNet2DModel", _latent(3)),
    "UNet2DConditionModel": _diffusers(
        "UNet2DConditionModel",
        _latent(encoder_hidden_states=(_BATCH, 77, 768)),
        cross_attention_dim=768,
        attention_head_dim=8,
    ),
    "DiTTransformer2DModel": _diffusers(
        "DiTTransformer2DModel", _hidden(class_labels=lambda: torch.zeros(_BATCH, dtype=torch.long))
    ),
    "SD3Transformer2DModel": _diffusers(
        "SD3Transformer2DModel",
        lambda: {
            "hidden_states": torch.randn(_BATCH, 16, 64, 64),
            "encoder_hidden_states": torch.randn(_BATCH, 154, 4096),
            "pooled_projections": torch.randn(_BATCH, 2048),
            "timestep": torch.ones(_BATCH),
        },
        num_layers=4,
    ),
    "FluxTransformer2DModel": _diffusers(
        "FluxTransformer2DModel",
        _flux_inputs,
        num_layers=2,
        num_single_layers=2,
        guidance_embeds=True,
    ),
    "PixArtTransformer2DModel": _diffusers(
        "PixArtTransformer2DModel",
        _hidden(encoder_hidden_states=_random(_BATCH, 120, 4096)),
        use_additional_conditions=False,
        sample_size=64,
    ),
    "AutoencoderKL": _diffusers(
        "AutoencoderKL",
        lambda: {"sample": torch.randn(_BATCH, 3, 256, 256)},
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
    ),
    "VQModel": _diffusers("VQModel", lambda: {"sample": torch.randn(_BATCH, 3, 128, 128)}),
    "ControlNetModel": _diffusers(
        "ControlNetModel",
        _latent(encoder_hidden_states=(_BATCH, 77, 768), controlnet_cond=(_BATCH, 3, 512, 512)),
        cross_attention_dim=768,
    ),
    "UNetSpatioTemporalConditionModel": _diffusers(
        "UNetSpatioTemporalConditionModel",
        lambda: {
            "sample": torch.randn(1, 4, 8, 32, 32),
            "timestep": torch.tensor(1.0),
            "encoder_hidden_states": torch.randn(1, 1, 1024),
            "added_time_ids": torch.randn(1, 3),
        },
        num_frames=4,
    ),
}


# ------------------------------------------------------------------------------- timm, torchvision


def _timm(name: str) -> Make:
    def make() -> dict[str, Any]:
        model = importlib.import_module("timm").create_model(name)
        size = model.default_cfg["input_size"]
        return _step(model, (torch.randn(_BATCH, *size),), _to_classes)

    return make


def _to_classes(output: Any) -> torch.Tensor:
    output = output[0] if isinstance(output, tuple) else output
    return functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.long))


_TIMM = """
resnet50 efficientnet_b0 mobilenetv3_large_100 convnext_tiny vit_base_patch16_224
swin_tiny_patch4_window7_224 deit3_small_patch16_224 mixer_b16_224 regnety_032 densenet121
nfnet_f0 maxvit_tiny_tf_224 coatnet_0_rw_224 beit_base_patch16_224 cait_s24_224
xcit_small_12_p16_224 poolformer_s12 ghostnet_100 inception_v4 hrnet_w18 vgg16
eva02_tiny_patch14_224 levit_128 edgenext_small efficientvit_b0 fastvit_t8 tiny_vit_5m_224
volo_d1_224 crossvit_15_240
""".split()  # noqa: SIM905


def _torchvision(name: str) -> Make:
    def make() -> dict[str, Any]:
        models = importlib.import_module("torchvision.models")
        parts = name.startswith(("deeplab", "fcn", "lraspp"))
        model = models.get_model(
            name, weights=None, **({"weights_backbone": None} if parts else {})
        )
        size = 299 if name == "inception_v3" else 224
        shape = (3, 8, 112, 112) if name in ("r3d_18", "mvit_v2_s", "swin3d_t") else (3, size, size)
        if name == "mvit_v2_s":
            shape = (3, 16, 224, 224)
        return _step(model, (torch.randn(_BATCH, *shape),), _vision_loss)

    return make


def _vision_loss(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor) and output.dim() == 2:
        return _to_classes(output)
    return _mean_square(output)


_TORCHVISION = """
alexnet vgg11_bn resnet18 resnext50_32x4d wide_resnet50_2 squeezenet1_0 densenet121 googlenet
inception_v3 shufflenet_v2_x1_0 mobilenet_v2 mobilenet_v3_small mnasnet0_5 efficientnet_v2_s
regnet_y_400mf convnext_tiny vit_b_16 swin_t swin_v2_t maxvit_t r3d_18 mvit_v2_s swin3d_t
deeplabv3_resnet50 fcn_resnet50 lraspp_mobilenet_v3_large
""".split()  # noqa: SIM905


def _detection(name: str) -> Make:
    """A detector of torchvision with its targets: it computes its own losses."""

    def make() -> dict[str, Any]:
        detection = importlib.import_module("torchvision.models.detection")
        model = getattr(detection, name)(weights=None, weights_backbone=None)
        boxes = torch.tensor([[10.0, 10.0, 100.0, 100.0]])
        target = {"boxes": boxes, "labels": torch.ones(1, dtype=torch.long)}
        images = [torch.rand(3, 320, 320) for _ in range(_BATCH)]
        return _step(model, (images, [target] * _BATCH), lambda losses: sum(losses.values()))

    return make


def _raft() -> dict[str, Any]:
    model = importlib.import_module("torchvision.models.optical_flow").raft_small(weights=None)
    images = tuple(torch.randn(1, 3, 256, 256) for _ in range(2))
    return _step(model, images, _mean_square)


# ------------------------------------------------------------------------------- torch alone


class _Recommender(nn.Module):
    """DLRM: tables of embeddings, their products, two stacks of layers."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.dense = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        x = self.dense(dense)
        found = [table(ids[k], starts) for k, table in enumerate(self.tables)]
        stacked = torch.stack([x, *found], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(*products.shape[1:], offset=-1)
        return self.top(torch.cat([x, products[:, rows, columns]], dim=1)).squeeze(1)


def _dlrm() -> dict[str, Any]:
    ids = torch.randint(0, 100_000, (26, 2048 * 10))
    inputs = (torch.randn(2048, 13), ids, torch.arange(0, 2048 * 10, 10))
    return _step(_Recommender(), inputs, lambda out: functional.binary_cross_entropy_with_logits(
        out, torch.zeros(2048)))  # fmt: skip


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words = nn.Embedding(30_000, 256)
        self.cells = kind(256, 512, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(512, 30_000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.words(ids))[0])


def _recurrent(kind: type[nn.RNNBase]) -> Make:
    def make() -> dict[str, Any]:
        ids = torch.randint(0, 30_000, (32, 64))
        return _step(_Recurrent(kind), (ids,), lambda out: functional.cross_entropy(
            out.flatten(0, 1), torch.zeros(32 * 64, dtype=torch.long)))  # fmt: skip

    return make


def _torch_transformer() -> dict[str, Any]:
    model = nn.Transformer(512, 8, batch_first=True)
    source, target = torch.randn(8, 128, 512), torch.randn(8, 64, 512)
    mask = nn.Transformer.generate_square_subsequent_mask(64)
    inputs = {"src": source, "tgt": target, "tgt_mask": mask, "tgt_is_causal": True}
    return _step(model, inputs, _mean_square)


_TORCH: dict[str, Make] = {
    "DLRM": _dlrm,
    "LSTM": _recurrent(nn.LSTM),
    "GRU": _recurrent(nn.GRU),
    "RNN": _recurrent(nn.RNN),
    "nn.Transformer": _torch_transformer,
}


MODELS: dict[str, Make] = {
    **{f"torch/{name}": make for name, make in _TORCH.items()},
    **{f"transformers/{n}": _transformers(n, **sizes) for n, sizes in _TRANSFORMERS.items()},
    **{f"diffusers/{name}": make for name, make in _DIFFUSERS.items()},
    **{f"timm/{name}": _timm(name) for name in _TIMM},
    **{f"torchvision/{name}": _torchvision(name) for name in _TORCHVISION},
    "torchvision/raft_small": _raft,
    **{
        f"torchvision/{name}": _detection(name)
        for name in (
            "fasterrcnn_resnet50_fpn",
            "retinanet_resnet50_fpn",
            "ssdlite320_mobilenet_v3_large",
        )
    },
}
