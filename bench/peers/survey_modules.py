"""The modules of ``pytorch_survey.py``: what people train, made from configurations alone, few layers and small images."""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, ...] | dict[str, Tensor]
Loss = Callable[..., Tensor] | None


class Subject(NamedTuple):
    """A module, a batch of it, and its loss if the module returns none."""

    module: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Loss = F.cross_entropy
    #: What it draws decides its loss, so that PyTorch has another one.
    draws: bool = False


SAMPLES = 4
WORDS = 64
LENGTH = 12


def images(side: int = 32, channels: int = 3, classes: int = 10) -> Callable[[], Batch]:
    return lambda: (torch.randn(SAMPLES, channels, side, side), labels(classes))


def labels(classes: int = 10, *dims: int) -> Tensor:
    return torch.randint(0, classes, (SAMPLES, *dims))


def tokens(*dims: int) -> Tensor:
    return torch.randint(4, WORDS, (SAMPLES, *(dims or (LENGTH,))))


# --- torchvision


def vision(name: str, side: int = 32, loss: Loss = F.cross_entropy, **given: Any) -> Subject:
    def made() -> nn.Module:
        return getattr(importlib.import_module("torchvision.models"), name)(weights=None, num_classes=10, **given)

    return Subject(made, images(side), loss)


def with_auxiliary(output: Any, target: Tensor) -> Tensor:
    logits, *others = output
    return F.cross_entropy(logits, target) + 0.3 * sum(F.cross_entropy(other, target) for other in others if other is not None)


def segmentation(name: str) -> Subject:
    def made() -> nn.Module:
        models = importlib.import_module("torchvision.models.segmentation")
        return getattr(models, name)(weights=None, weights_backbone=None, num_classes=5)

    def loss(output: Any, target: Tensor) -> Tensor:
        return F.cross_entropy(output["out"], target, ignore_index=255)

    return Subject(made, lambda: (torch.randn(SAMPLES, 3, 64, 64), labels(5, 64, 64)), loss)


def maxvit() -> nn.Module:
    from torchvision.models import MaxVit

    return MaxVit((64, 64), 8, 2, [8, 16], [1, 1], 8, 0.2, num_classes=10)


def vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10)


def swin(name: str, block: str) -> nn.Module:
    models = importlib.import_module("torchvision.models.swin_transformer")
    merging = models.PatchMergingV2 if block.endswith("V2") else models.PatchMerging
    given = dict(window_size=[4, 4], num_classes=10, block=getattr(models, block), downsample_layer=merging)
    return models.SwinTransformer([2, 2], 12, [2, 2], [3, 6], **given)


TORCHVISION = {
    "alexnet": vision("alexnet", 64),
    "vgg11_bn": vision("vgg11_bn"),
    "resnet18": vision("resnet18"),
    "resnet50": vision("resnet50", zero_init_residual=True),
    "resnext50_32x4d": vision("resnext50_32x4d"),
    "wide_resnet50_2": vision("wide_resnet50_2"),
    "densenet121": vision("densenet121"),
    "googlenet": vision("googlenet", 96, with_auxiliary, init_weights=False, aux_logits=True),
    "inception_v3": vision("inception_v3", 96, F.cross_entropy, init_weights=False, aux_logits=False),
    "mobilenet_v2": vision("mobilenet_v2"),
    "mobilenet_v3_small": vision("mobilenet_v3_small"),
    "shufflenet_v2_x0_5": vision("shufflenet_v2_x0_5"),
    "squeezenet1_1": vision("squeezenet1_1", 64),
    "efficientnet_b0": vision("efficientnet_b0"),
    "efficientnet_v2_s": vision("efficientnet_v2_s"),
    "regnet_y_400mf": vision("regnet_y_400mf"),
    "mnasnet0_5": vision("mnasnet0_5"),
    "convnext_tiny": vision("convnext_tiny"),
    "swin": Subject(lambda: swin("swin", "SwinTransformerBlock"), images()),
    "swin_v2": Subject(lambda: swin("swin_v2", "SwinTransformerBlockV2"), images()),
    "maxvit": Subject(maxvit, images(64)),
    "vit": Subject(vit, images()),
    "fcn_resnet50": segmentation("fcn_resnet50"),
    "deeplabv3_mobilenet_v3_large": segmentation("deeplabv3_mobilenet_v3_large"),
    "lraspp_mobilenet_v3_large": segmentation("lraspp_mobilenet_v3_large"),
    "r3d_18": Subject(
        lambda: importlib.import_module("torchvision.models.video").r3d_18(weights=None, num_classes=10),
        lambda: (torch.randn(SAMPLES, 3, 8, 32, 32), labels()),
    ),
}


# --- timm


def timm(name: str, side: int = 32, **given: Any) -> Subject:
    def made() -> nn.Module:
        return importlib.import_module("timm").create_model(name, num_classes=10, **given)

    return Subject(made, images(side))


def mixer(block: str, norm: str = "", ratio: Any = (0.5, 4.0)) -> nn.Module:
    models = importlib.import_module("timm.models.mlp_mixer")
    norm_layer = getattr(models, norm) if norm else functools.partial(nn.LayerNorm, eps=1e-6)
    given = dict(img_size=32, patch_size=8, embed_dim=24, num_blocks=2, mlp_ratio=ratio, norm_layer=norm_layer)
    return models.MlpMixer(10, block_layer=getattr(models, block), **given)


SMALL = dict(img_size=32, patch_size=8, embed_dim=24, depth=2)

TIMM = {
    "timm convnext": timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 16)),
    "timm convnext_v2": timm("convnextv2_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 16)),
    "timm deit": timm("deit_tiny_distilled_patch16_224", **SMALL, num_heads=2),
    "timm mixer": Subject(lambda: mixer("MixerBlock"), images()),
    "timm resmlp": Subject(lambda: mixer("ResBlock", "Affine", 4), images()),
    "timm beit": timm("beit_base_patch16_224", **SMALL, num_heads=2),
    "timm eva02": timm("eva02_tiny_patch14_224", **SMALL, num_heads=2),
    "timm nfnet": timm("dm_nfnet_f0", 64, depths=(1, 1, 1, 1), channels=(32, 32, 32, 32), stem_type="3x3", group_size=16),
    "timm ghostnet": timm("ghostnet_050", 64),
    "timm levit": timm("levit_128s", 224),
    "timm poolformer": timm("poolformer_s12", 64),
    "timm coatnet": timm("coatnet_nano_rw_224", 64, img_size=64),
    "timm mobilevit": timm("mobilevit_xxs", 64),
    "timm cait": timm("cait_xxs24_224", **SMALL, num_heads=2),
    "timm volo": timm("volo_d1_224", 64, img_size=64),
    "timm pvt_v2": timm("pvt_v2_b0", 64, depths=(1, 1, 1, 1)),
    "timm xcit": timm("xcit_nano_12_p8_224", **SMALL, num_heads=2),
    "timm res2net": timm("res2net50_26w_4s", 64),
    "timm hrnet": timm("hrnet_w18_small", 64),
    "timm resnetv2": timm("resnetv2_50", 64),
    "timm repvgg": timm("repvgg_a0", 64),
    "timm twins": timm("twins_svt_small", 64, img_size=64, depths=(1, 1, 1, 1)),
}


# --- transformers

SIZES = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=WORDS, max_position_embeddings=32
)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)


def hugging(kind: str, head: str, batch: Callable[[], Batch], **config: Any) -> Subject:
    def made() -> nn.Module:
        transformers = importlib.import_module("transformers")
        given = getattr(transformers, f"{kind}Config")(**config)
        if hasattr(given, "use_cache"):
            given.use_cache = False
        model = getattr(transformers, f"{kind}{head}")(given)
        if hasattr(given, "num_local_experts"):
            # the loop over those that are chosen depends on values
            model.set_experts_implementation("batched_mm")
        return model

    return Subject(made, batch, None)


def words(of: Callable[[], Tensor] = tokens) -> Callable[[], Batch]:
    return lambda: {"input_ids": tokens(), "labels": of()}


def causal(kind: str, **config: Any) -> Subject:
    return hugging(kind, "ForCausalLM", words(), **SIZES | TOKENS | config)


def masked(kind: str, **config: Any) -> Subject:
    return hugging(kind, "ForMaskedLM", words(), **SIZES | dict(pad_token_id=0) | config)


def padded() -> Batch:
    """Sentences of several lengths, with what is not padding as the mask."""
    lengths = torch.tensor([LENGTH, 7, 9, 3])[:, None]
    there = torch.arange(LENGTH) < lengths
    return {"input_ids": tokens() * there, "attention_mask": there.long(), "labels": labels(3)}


def sounds() -> Batch:
    return {"input_features": torch.randn(SAMPLES, 8, 40), "labels": tokens()}


def pictures() -> Batch:
    return {"pixel_values": torch.randn(SAMPLES, 3, 32, 32), "labels": labels(3)}


def pairs() -> Batch:
    ids = tokens()
    ids[:, -1] = WORDS - 1
    return {"input_ids": ids, "pixel_values": torch.randn(SAMPLES, 3, 32, 32)}


def clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    text = SIZES | dict(eos_token_id=WORDS - 1, bos_token_id=1, pad_token_id=0)
    vision = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    model.forward = functools.partial(model.forward, return_loss=True)
    return model


T5 = dict(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=WORDS, decoder_start_token_id=0)
BART = dict(
    d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32
)
GPT2 = dict(n_layer=2, n_embd=16, n_head=2, n_positions=32, vocab_size=WORDS, **TOKENS)

TRANSFORMERS = {
    "gpt2": hugging("GPT2", "LMHeadModel", words(), **GPT2),
    "gpt2 classifier": hugging("GPT2", "ForSequenceClassification", padded, **GPT2, num_labels=3),
    "gpt_neox": causal("GPTNeoX"),
    "gptj": hugging("GPTJ", "ForCausalLM", words(), **GPT2, rotary_dim=4),
    "opt": causal("OPT", ffn_dim=32, word_embed_proj_dim=16),
    "bloom": hugging("Bloom", "ForCausalLM", words(), hidden_size=16, n_layer=2, n_head=2, vocab_size=WORDS, **TOKENS),
    "llama": causal("Llama", num_key_value_heads=1),
    "llama classifier": hugging("Llama", "ForSequenceClassification", padded, **SIZES, **TOKENS, num_labels=3),
    "mistral": causal("Mistral", num_key_value_heads=1, sliding_window=6),
    "qwen2": causal("Qwen2", num_key_value_heads=1),
    "qwen3": causal("Qwen3", num_key_value_heads=1, head_dim=8),
    "gemma": causal("Gemma", num_key_value_heads=1, head_dim=8),
    "gemma2": causal("Gemma2", num_key_value_heads=1, head_dim=8),
    "phi": causal("Phi"),
    "falcon": causal("Falcon"),
    "mixtral": causal("Mixtral", num_key_value_heads=1, num_local_experts=4),
    "mamba": hugging("Mamba", "ForCausalLM", words(), hidden_size=16, num_hidden_layers=2, vocab_size=WORDS, state_size=4, **TOKENS),
    "bert": masked("Bert"),
    "bert classifier": hugging("Bert", "ForSequenceClassification", padded, **SIZES, num_labels=3),
    "roberta": masked("Roberta"),
    "distilbert": hugging("DistilBert", "ForMaskedLM", words(), dim=16, n_layers=2, n_heads=2, hidden_dim=32, vocab_size=WORDS),
    "albert": masked("Albert", embedding_size=8),
    "electra": masked("Electra", embedding_size=8),
    "deberta_v2": masked("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4),
    "t5": hugging("T5", "ForConditionalGeneration", words(), **T5, **TOKENS),
    "bart": hugging("Bart", "ForConditionalGeneration", words(), **BART, vocab_size=WORDS, max_position_embeddings=32, **TOKENS),
    "whisper": hugging(
        "Whisper",
        "ForConditionalGeneration",
        sounds,
        **BART,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=32,
        vocab_size=WORDS,
        decoder_start_token_id=1,
        **TOKENS,
    ),
    "vit (transformers)": hugging(
        "ViT",
        "ForImageClassification",
        pictures,
        **{name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")},
        image_size=32,
        patch_size=8,
        num_labels=3,
    ),
    "clip": Subject(clip, pairs, None),
}


def subjects() -> Iterator[tuple[str, str, Subject]]:
    """Gives all of them: from where, its name, and it."""
    from survey_layers import LAYERS

    for origin, named in (("torchvision", TORCHVISION), ("timm", TIMM), ("transformers", TRANSFORMERS), ("torch.nn", LAYERS)):
        for name, subject in named.items():
            yield origin, name, subject
