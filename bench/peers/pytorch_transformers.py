"""tensorwire's transformers as the modules of Hugging Face's transformers and of timm, without dropout. Their
parameters have the names and layouts of tensorwire's, so that a file of weights fits both.
"""

import torch
import torch.nn.functional as F

# of gpt-mini, whose vocabulary is that of its data: the characters of made-up text
CHARACTERS = 65
PADDING_LABEL = -1


def gpt(layers, heads, width, context, vocabulary):
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": context}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    no_marks = {"bos_token_id": None, "eos_token_id": None}
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, **no_marks, vocab_size=vocabulary))


def bert(layers, heads, width, context, vocabulary):
    from transformers import BertConfig, BertForMaskedLM

    shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
    shape |= {"intermediate_size": 4 * width, "max_position_embeddings": context}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(BertConfig(**shape, **dropout, vocab_size=vocabulary))


def vit(name):
    import timm

    return timm.create_model(name, pretrained=False)


# model: (tokens of a window, or None for images; what makes the module, given the vocabulary of the data)
MODULES = {
    "gpt2-small": (1024, lambda _: gpt(12, 12, 768, 1024, 50257)),
    "gpt-mini": (128, lambda vocabulary: gpt(6, 6, 192, 128, vocabulary)),
    "bert-mini": (128, lambda _: bert(4, 4, 256, 512, 30522)),
    "vit-small": (None, lambda _: vit("vit_small_patch16_224")),
}


class Transformer:
    """A module and its parameters by tensorwire's names."""

    def __init__(self, model, seed, vocabulary=CHARACTERS):
        torch.manual_seed(seed)
        self.window, make = MODULES[model]
        self.module = make(vocabulary).train()
        # what is tied is named once
        named = self.module.named_parameters()
        self.parameters = {name.removeprefix("transformer."): made for name, made in named}

    def loss(self, batch):
        labels = batch["labels"].long()
        if self.window is None:
            return F.cross_entropy(self.module(batch["input"].permute(0, 3, 1, 2)), labels)
        logits = self.module(input_ids=batch["input"].long()).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PADDING_LABEL)
