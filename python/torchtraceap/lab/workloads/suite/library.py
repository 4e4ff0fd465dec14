"""Models of Hugging Face's transformers, built from configurations without downloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtraceap.lab.workloads.declaration import workload
from torchtraceap.lab.workloads.suite.layers import Made, adamw, classes, pick

_RESNET = {
    "embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}  # fmt: skip
_TINY = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128
}  # fmt: skip
_PATCHES = {**_TINY, "image_size": 64, "patch_size": 16}


def _library(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


def _model_parts(
    name: str,
    config: dict[str, Any],
    inputs: dict[str, Any],
    loss: Callable[[Any], Tensor] | None = None,
) -> Made:
    """Make the parts of a model that returns its own loss unless one is given."""
    made = _library(name)
    return {
        "model": made(made.config_class(**config)),
        "inputs": inputs,
        "loss": loss or (lambda output: output.loss),
        "optimizer": adamw,
    }


def _both_sides(heads: int) -> dict[str, int]:
    """Return the sizes of a tiny encoder and a tiny decoder."""
    sizes = {"layers": 2, "attention_heads": heads, "ffn_dim": 128}
    return {f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in sizes.items()}


def _images(batch: int, side: int) -> Tensor:
    return torch.randn(batch, 3, side, side)


def _distance_from_one(key: str) -> Callable[[Any], Tensor]:
    """Return the distance of an output from one, a stand-in where the library has no loss."""
    return lambda output: (output[key].float() - 1).square().mean()


def _language_inputs(batch: int, length: int, words: int = 500) -> dict[str, Tensor]:
    """Return random tokens with themselves as labels."""
    ids = torch.randint(4, words, (batch, length))
    return {"input_ids": ids, "labels": ids}


# ------------------------------------------------------------------------- language


@workload(
    task="text classification",
    domain="language",
    needs=("transformers",),
    exercises="BERT as its users have it: pooler, dropout, attention masks.",
)
def hf_bert(batch: int = 4, size: str = "tiny") -> Made:
    config = pick(size, {**_TINY, "vocab_size": 500, "max_position_embeddings": 64}, {})
    ids = torch.randint(4, 500, (batch, pick(size, 32, 512)))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": classes(batch, 2)}
    return _model_parts("BertForSequenceClassification", config, inputs)


@workload(
    task="text classification",
    domain="language",
    needs=("transformers",),
    exercises="Half of BERT's layers, without kinds of tokens.",
)
def hf_distilbert(batch: int = 4, size: str = "tiny") -> Made:
    tiny = {"dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128, "vocab_size": 500}
    ids = torch.randint(4, 500, (batch, pick(size, 32, 512)))
    inputs = {"input_ids": ids, "labels": classes(batch, 2)}
    return _model_parts("DistilBertForSequenceClassification", pick(size, tiny, {}), inputs)


@workload(
    task="language modelling",
    domain="language",
    needs=("transformers",),
    exercises="GPT-2 with its own Conv1D layers (addmm of transposed weights).",
)
def hf_gpt2(batch: int = 4, size: str = "tiny") -> Made:
    tiny = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 64}
    special = {"bos_token_id": 1, "eos_token_id": 1}
    inputs = _language_inputs(batch, pick(size, 32, 1024))
    return _model_parts("GPT2LMHeadModel", pick(size, {**tiny, **special}, {}), inputs)


def _decoder(size: str, **more: Any) -> dict[str, Any]:
    """Return the sizes of a decoder like Llama; some 200 million weights in full."""
    full = {
        "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16,
        "intermediate_size": 2816, "num_key_value_heads": 8, "vocab_size": 32000,
    }  # fmt: skip
    tiny = {**_TINY, "vocab_size": 500, "num_key_value_heads": 1, "max_position_embeddings": 64}
    return {**pick(size, tiny, full), **more}


@workload(
    task="language modelling",
    domain="language",
    needs=("transformers",),
    exercises="Rotary places by halves, grouped queries, a cache object in the forward pass.",
)
def hf_llama(batch: int = 4, size: str = "tiny") -> Made:
    return _model_parts(
        "LlamaForCausalLM", _decoder(size), _language_inputs(batch, pick(size, 32, 1024))
    )


@workload(
    task="language modelling",
    domain="language",
    needs=("transformers",),
    exercises="Llama's layers with biases in the projections.",
)
def hf_qwen2(batch: int = 4, size: str = "tiny") -> Made:
    return _model_parts(
        "Qwen2ForCausalLM", _decoder(size), _language_inputs(batch, pick(size, 32, 1024))
    )


@workload(
    task="language modelling",
    domain="language",
    needs=("transformers",),
    exercises="A mixture of experts as the library runs it.",
)
def hf_mixtral(batch: int = 4, size: str = "tiny") -> Made:
    more = pick(size, {"num_local_experts": 4}, {"num_local_experts": 8, "num_hidden_layers": 4})
    config = _decoder(size, **more)
    return _model_parts("MixtralForCausalLM", config, _language_inputs(batch, pick(size, 32, 1024)))


@workload(
    task="language modelling",
    domain="language",
    needs=("transformers",),
    exercises="A selective state space scanned in Python where its kernels are not installed.",
)
def hf_mamba(batch: int = 2, size: str = "tiny") -> Made:
    tiny = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 500}
    full = {"hidden_size": 768, "num_hidden_layers": 8, "vocab_size": 50280}
    return _model_parts(
        "MambaForCausalLM", pick(size, tiny, full), _language_inputs(batch, pick(size, 24, 256))
    )


@workload(
    task="translation",
    domain="language",
    needs=("transformers",),
    exercises="Encoder and decoder with relative biases, norms without means.",
)
def hf_t5(batch: int = 4, size: str = "tiny") -> Made:
    tiny = {
        "d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 2,
        "vocab_size": 500,
    }  # fmt: skip
    config = {**pick(size, tiny, {}), "decoder_start_token_id": 0}
    return _model_parts(
        "T5ForConditionalGeneration", config, _language_inputs(batch, pick(size, 24, 512))
    )


@workload(
    task="summarisation",
    domain="language",
    needs=("transformers",),
    exercises="Encoder and decoder with learned places and layer drop.",
)
def hf_bart(batch: int = 4, size: str = "tiny") -> Made:
    tiny = {"d_model": 64, "vocab_size": 500, "max_position_embeddings": 64, **_both_sides(2)}
    return _model_parts(
        "BartForConditionalGeneration",
        pick(size, tiny, {}),
        _language_inputs(batch, pick(size, 24, 512)),
    )


# ------------------------------------------------------------------------- vision


@workload(
    task="classification",
    domain="vision",
    needs=("transformers",),
    exercises="ViT through the library's attention interface.",
)
def hf_vit(batch: int = 8, size: str = "tiny") -> Made:
    inputs = {"pixel_values": _images(batch, pick(size, 64, 224)), "labels": classes(batch, 2)}
    return _model_parts("ViTForImageClassification", pick(size, _PATCHES, {}), inputs)


@workload(
    task="classification",
    domain="vision",
    needs=("transformers",),
    exercises="Linear attention by separable convolutions, many small layers.",
)
def hf_mobilevit(batch: int = 2, size: str = "tiny") -> Made:
    tiny = {"image_size": 64, "width_multiplier": 0.25}
    inputs = {"pixel_values": _images(batch, pick(size, 64, 256)), "labels": classes(batch, 2)}
    return _model_parts("MobileViTV2ForImageClassification", pick(size, tiny, {}), inputs)


@workload(
    task="contrastive pretraining",
    domain="vision",
    needs=("transformers",),
    exercises="Two encoders, pictures against texts in one matrix.",
)
def hf_clip(batch: int = 4, size: str = "tiny") -> Made:
    special = {"eos_token_id": 499, "bos_token_id": 498, "pad_token_id": 0}
    tiny = {
        "text_config": {**_TINY, "vocab_size": 500, **special}, "vision_config": _PATCHES,
        "projection_dim": 32,
    }  # fmt: skip
    ids = torch.randint(4, 498, (batch, pick(size, 16, 77)))
    ids[:, -1] = pick(size, 499, 49407)
    images = _images(batch, pick(size, 64, 224))
    inputs = {"input_ids": ids, "pixel_values": images, "return_loss": True}
    return _model_parts("CLIPModel", pick(size, tiny, {}), inputs)


def _objects(batch: int) -> list[dict[str, Tensor]]:
    """Return three random objects for each image."""
    return [
        {"class_labels": classes(3, 3), "boxes": 0.25 + 0.25 * torch.rand(3, 4)}
        for _ in range(batch)
    ]


@workload(
    task="detection",
    domain="vision",
    needs=("transformers", "scipy"),
    exercises="Hungarian matching on the host: costs go there, an assignment comes back.",
)
def hf_detr(batch: int = 2, size: str = "tiny") -> Made:
    tiny: dict[str, Any] = {"d_model": 64, "num_queries": 12, **_both_sides(4)}
    resnet = _library("ResNetConfig")(**pick(size, _RESNET, {}), out_features=["stage4"])
    own = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
    config = {**pick(size, tiny, {}), **own, "backbone_config": resnet, "num_labels": 3}
    inputs = {"pixel_values": _images(batch, pick(size, 64, 512)), "labels": _objects(batch)}
    return _model_parts("DetrForObjectDetection", config, inputs)


@workload(
    task="detection",
    domain="vision",
    needs=("transformers", "scipy"),
    exercises="Detection by a plain transformer with tokens for objects.",
)
def hf_yolos(batch: int = 2, size: str = "tiny") -> Made:
    tiny: dict[str, Any] = {**_PATCHES, "image_size": [128, 128], "num_detection_tokens": 12}
    config = {**pick(size, tiny, {"image_size": [512, 512]}), "num_labels": 3}
    inputs = {"pixel_values": _images(batch, pick(size, 128, 512)), "labels": _objects(batch)}
    return _model_parts("YolosForObjectDetection", config, inputs)


@workload(
    task="segmentation",
    domain="vision",
    needs=("transformers",),
    exercises="A hierarchy of transformers, a decoder that interpolates all its maps.",
)
def hf_segformer(batch: int = 2, size: str = "tiny") -> Made:
    tiny = {
        "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 32,
    }  # fmt: skip
    side = pick(size, 64, 512)
    inputs = {"pixel_values": _images(batch, side), "labels": classes(batch, 3, side, side)}
    return _model_parts(
        "SegformerForSemanticSegmentation", {**pick(size, tiny, {}), "num_labels": 3}, inputs
    )


@workload(
    task="segmentation",
    domain="vision",
    needs=("transformers", "scipy"),
    exercises="Deformable attention by grid_sample, masks matched at drawn points.",
)
def hf_mask2former(batch: int = 1) -> Made:
    swin = _library("SwinConfig")(
        image_size=64, patch_size=4, embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8],
        window_size=4, out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    widths = dict.fromkeys(("hidden_dim", "feature_size", "mask_feature_size"), 32)
    depths = {"encoder_layers": 1, "decoder_layers": 3, "num_attention_heads": 4}
    config = {
        **widths, **depths, "encoder_feedforward_dim": 64, "dim_feedforward": 64,
        "backbone_config": swin, "num_queries": 10, "train_num_points": 128, "num_labels": 3,
    }  # fmt: skip
    inputs = {
        "pixel_values": _images(batch, 64),
        "mask_labels": [torch.rand(2, 64, 64).round() for _ in range(batch)],
        "class_labels": [classes(2, 3) for _ in range(batch)],
    }
    return _model_parts("Mask2FormerForUniversalSegmentation", config, inputs)


@workload(
    task="depth",
    domain="vision",
    needs=("transformers",),
    exercises="Tokens of several layers reassembled to maps and fused.",
)
def hf_dpt(batch: int = 2) -> Made:
    config = {
        **_PATCHES, "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64,
        "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 16, 32, 32],
        "fusion_hidden_size": 16,
    }  # fmt: skip
    inputs = {"pixel_values": _images(batch, 64)}
    return _model_parts(
        "DPTForDepthEstimation", config, inputs, _distance_from_one("predicted_depth")
    )


@workload(
    task="pose",
    domain="vision",
    needs=("transformers",),
    exercises="A plain transformer with a decoder of heat maps.",
)
def hf_vitpose(batch: int = 4) -> Made:
    backbone = _library("VitPoseBackboneConfig")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=[64, 48],
        patch_size=[16, 16], out_indices=[2],
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(batch, 3, 64, 48)}
    config = {"backbone_config": backbone, "num_labels": 17}
    return _model_parts("VitPoseForPoseEstimation", config, inputs, _distance_from_one("heatmaps"))


@workload(
    task="video",
    domain="vision",
    needs=("transformers",),
    exercises="Tubes of frames as tokens.",
)
def hf_videomae(batch: int = 2, size: str = "tiny") -> Made:
    frames, side = pick(size, (4, 64), (16, 224))
    clips = torch.randn(batch, frames, 3, side, side)
    inputs = {"pixel_values": clips, "labels": classes(batch, 2)}
    config = pick(size, {**_PATCHES, "num_frames": 4}, {})
    return _model_parts("VideoMAEForVideoClassification", config, inputs)


# ------------------------------------------------------------------------- speech


@workload(
    task="speech recognition",
    domain="speech",
    needs=("transformers",),
    exercises="wav2vec 2.0 with CTC as its users have it.",
)
def hf_wav2vec2(batch: int = 2, size: str = "tiny") -> Made:
    convolutions = {
        "conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2),
        "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
    }  # fmt: skip
    config = {**pick(size, {**_TINY, **convolutions}, {}), "vocab_size": 32, "mask_time_prob": 0.0}
    wave = torch.randn(batch, pick(size, 2000, 160000))
    inputs = {"input_values": wave, "labels": classes(batch, 30, pick(size, 8, 100)) + 1}
    return _model_parts("Wav2Vec2ForCTC", config, inputs)


@workload(
    task="speech recognition",
    domain="speech",
    needs=("transformers",),
    exercises="A spectrogram through convolutions, an encoder and a decoder.",
)
def hf_whisper(batch: int = 2, size: str = "tiny") -> Made:
    tiny: dict[str, Any] = {
        **_both_sides(2), "d_model": 64, "num_mel_bins": 16, "max_source_positions": 60,
        "max_target_positions": 40, "vocab_size": 500, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 3,
    }  # fmt: skip
    mels, frames, length = pick(size, (16, 120, 12), (80, 3000, 200))
    labels = torch.randint(4, 500, (batch, length))
    inputs = {"input_features": torch.randn(batch, mels, frames), "labels": labels}
    return _model_parts("WhisperForConditionalGeneration", pick(size, tiny, {}), inputs)


@workload(
    task="audio classification",
    domain="speech",
    needs=("transformers",),
    exercises="A spectrogram as a picture of overlapping patches.",
)
def hf_ast(batch: int = 4, size: str = "tiny") -> Made:
    tiny = {**_TINY, "patch_size": 16, "max_length": 64, "num_mel_bins": 32}
    frames, mels = pick(size, (64, 32), (1024, 128))
    inputs = {"input_values": torch.randn(batch, frames, mels), "labels": classes(batch, 2)}
    return _model_parts("ASTForAudioClassification", pick(size, tiny, {}), inputs)
