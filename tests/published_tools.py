"""Tiny checkpoints in the published layouts of NV-Embed and LENS, for tests; weights random, or of a fixture."""

import json
import shutil

import torch
from parity import FOLDER, Fixture
from safetensors.torch import load_file, save_file

SHARED = FOLDER / "_shared"

BLOCK = {
    "latents": "latents",
    "query_norm": "cross_attend_blocks.0.norm",
    "context_norm": "cross_attend_blocks.0.norm_context",
    "to_q": "cross_attend_blocks.0.fn.to_q",
    "to_kv": "cross_attend_blocks.0.fn.to_kv",
    "to_out": "cross_attend_blocks.0.fn.to_out",
    "ff_norm": "cross_attend_blocks.1.norm",
    "ff.in": "cross_attend_blocks.1.fn.net.0",
    "ff.out": "cross_attend_blocks.1.fn.net.2",
}
"""Names in the fixtures, and in the published checkpoint."""


def trunk_config():
    """The settings of the tiny decoder as a checkpoint of transformers 4.42 has them."""
    return json.loads((SHARED / "tiny_backbone_mistral" / "config.json").read_text())


def trunk_tensors():
    """The weights of the tiny decoder, named as in a Mistral without its head."""
    tensors = load_file(SHARED / "tiny_backbone_mistral" / "model.safetensors")
    return {name.removeprefix("model."): value for name, value in tensors.items() if name != "lm_head.weight"}


def random_trunk(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 1 + torch.randn(value.shape, generator=generator) / 8
        if "norm" in name
        else torch.randn(value.shape, generator=generator) / 4
        for name, value in trunk_tensors().items()
    }


def nv_embed_shapes(width, latents, inner):
    """Names and shapes of the published block of latent attention."""
    return {
        "latents": (latents, width),
        "cross_attend_blocks.0.norm.weight": (width,),
        "cross_attend_blocks.0.norm.bias": (width,),
        "cross_attend_blocks.0.norm_context.weight": (width,),
        "cross_attend_blocks.0.norm_context.bias": (width,),
        "cross_attend_blocks.0.fn.to_q.weight": (inner, width),
        "cross_attend_blocks.0.fn.to_kv.weight": (2 * inner, width),
        "cross_attend_blocks.0.fn.to_out.weight": (width, inner),
        "cross_attend_blocks.1.norm.weight": (width,),
        "cross_attend_blocks.1.norm.bias": (width,),
        "cross_attend_blocks.1.fn.net.0.weight": (8 * width, width),
        "cross_attend_blocks.1.fn.net.0.bias": (8 * width,),
        "cross_attend_blocks.1.fn.net.2.weight": (width, 4 * width),
        "cross_attend_blocks.1.fn.net.2.bias": (width,),
    }


def nv_embed_config(latents, heads, head_dimension):
    """Settings as NV-Embed-v2's config.json nests them."""
    return {
        "architectures": ["NVEmbedModel"],
        "auto_map": {"AutoConfig": "configuration_nvembed.NVEmbedConfig", "AutoModel": "modeling_nvembed.NVEmbedModel"},
        "model_type": "nvembed",
        "hidden_size": 32,
        "add_eos": True,
        "add_pad_token": True,
        "is_mask_instruction": True,
        "mask_type": "b",
        "padding_side": "right",
        "latent_attention_config": {
            "model_type": "latent_attention",
            "num_latents_value": latents,
            "num_cross_heads": heads,
            "output_normalize": True,
            "hidden_dim": 32,
            "latent_dim": 32,
            "cross_dim_head": head_dimension,
        },
        "text_config": trunk_config() | {"model_type": "bidir_mistral", "_name_or_path": "nvidia/NV-Embed-v2"},
    }


def write_nv_embed(folder, seed=None, latents=6, heads=8, dtype=torch.float32):
    """NV-Embed's layout: random weights of the published proportions by a seed, or those of the parity fixture."""
    if seed is None:
        fixture = Fixture("nv_embed_latent/text_end_to_end")
        dims = fixture.about["dims"]
        latents, heads, head_dimension = dims["latents"], dims["heads"], dims["dim_head"]
        trunk, block = trunk_tensors(), {}
        for name, value in load_file(fixture.folder / "extra.safetensors").items():
            layer, _, kind = name.rpartition(".")
            block[BLOCK[name] if name in BLOCK else f"{BLOCK[layer]}.{kind}"] = value
    else:
        generator, head_dimension, trunk = torch.Generator().manual_seed(seed), 32, random_trunk(seed)
        shapes = nv_embed_shapes(32, latents, heads * head_dimension)
        block = {name: torch.randn(shape, generator=generator) / 4 for name, shape in shapes.items()}
    tensors = {f"embedding_model.{name}": value for name, value in trunk.items()}
    tensors |= {f"latent_attention_model.{name}": value for name, value in block.items()}
    write(folder, nv_embed_config(latents, heads, head_dimension), tensors, "tiny_bos_tokenizer", dtype)
    return tensors


def write_lens(folder, seed=None, clusters=24, prefix="model.", dtype=torch.float32):
    """LENS' layout with its head as safetensors: random weights by a seed, or those of the parity fixture."""
    if seed is None:
        fixture = Fixture("lens_pooling/text_end_to_end")
        trunk, head = trunk_tensors(), load_file(fixture.folder / "extra.safetensors")["cluster_head.weight"]
    else:
        trunk = random_trunk(seed)
        head = torch.randn(clusters, 32, generator=torch.Generator().manual_seed(seed)) / 4
    tensors = {f"{prefix}{name}": value for name, value in trunk.items()}
    config = trunk_config() | {"architectures": ["MistralBiForCausalLM"]}
    write(folder, config, tensors, "tiny_bos_eos_tokenizer", dtype)
    save_file({"lm_head.weight": head.to(dtype)}, folder / "lm_head.safetensors")
    return tensors | {"lm_head.weight": head}


def write(folder, config, tensors, tokenizer, dtype=torch.float32, shards=3):
    """A folder with sharded safetensors, their index, the configuration and a tokenizer."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    files = {name: f"model-0000{place % shards + 1}-of-0000{shards}.safetensors" for place, name in enumerate(names)}
    for file in {*files.values()}:
        save_file({name: tensors[name].to(dtype).contiguous() for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    for path in (SHARED / tokenizer).iterdir():
        shutil.copy(path, folder)
