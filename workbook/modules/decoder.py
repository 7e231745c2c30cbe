"""The decoder: the first module of every chain, from texts to contextual token states."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers.base.modules import InputModule
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import attention as attention_modes
from .. import backbones
from ..checksums import verify_checksums, write_checksums
from ..errors import AttentionError, InvalidValueError, whole
from ..files import writing
from ..resolved import configuration_content, resolved, tokenizer_content
from ..templates import Encoded, Template, answer_opening, as_template
from ..texts import check_text
from .passes import batch_of, behind_prefixes, in_groups, last_states
from .prefix import PrefixCache, watched
from .saving import hub_options, loading_options

logger = logging.getLogger(__name__)


class Decoder(InputModule):
    """A decoder-only language model as the first module of a sentence-transformers chain.

    It lays a text out by its template, tokenizes it, runs the language model with causal or bidirectional attention,
    and passes on the last hidden states with the mask of the tokens to pool.

    Args:
        decoder: A transformers decoder without its language-model head.
        tokenizer: Its fast tokenizer; its chat template, if it has one, is used for ``suffix`` alone.
        attention: ``causal`` or ``bidirectional``; set, measured by `workbook.attention.measured_mode`, and
            saved with the model. None leaves the decoder as it is: another model has set and measured it.
        template: A name from ``workbook.templates.TEMPLATES``, or a Template.
        max_length: Longest input in tokens (of each piece, for templates that tokenize piece by piece).
        vector_behind_bos: Whether BOS precedes a vector that is read in place of a word, as in Anchor. Saved with the
            model, since a decoder can read vectors only as it was trained to.
        prefix_cache: Whether what stands in front of a text (BOS, instruction, examples) is read once and kept, for
            causal attention. Vectors stay the same, to 1e-5 in float32 and to rounding in half precision. It is used
            in evaluation mode without gradients only, never in training; at most :data:`~.prefix.BYTES` are kept.

    Raises:
        UnknownNameError: No such attention mode or template.
        InvalidValueError: A max_length that is not a positive whole number, a template that is not a Template, a
            suffix that the tokenizer can't write, or a prefix cache under bidirectional attention.
        AttentionError: The measured attention is not the one that was asked for.
    """

    config_file_name = "decoder_config.json"
    config_keys = ("attention", "template", "max_length", "vector_behind_bos", "prefix_cache")
    adapted: tuple[str, ...] = ("decoder",)
    """Attributes that hold the transformers that training adapts."""
    contextual_tokens = 0
    """Number of tokens that ``{context}`` stands for in the template."""

    def __init__(
        self,
        decoder: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        attention: str | None = "causal",
        template: str | dict | Template = "plain",
        max_length: int = 512,
        vector_behind_bos: bool = False,
        prefix_cache: bool = False,
    ):
        super().__init__()
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.vector_behind_bos = vector_behind_bos
        self._set_template(as_template(template))
        self._prefixes: PrefixCache | None = None
        if attention is not None:
            self.attention = attention
        self.prefix_cache = prefix_cache

    @property
    def attention(self) -> str:
        """The decoder's attention mode; setting it switches the decoder and checks that it really switched.

        The check is a measurement, made once per process for decoders of the same kind and settings. The mode is kept
        in the decoder's configuration alone, so models that share a decoder share its attention.

        Raises:
            UnknownNameError: No such mode.
            AttentionError: The decoder did not switch.
        """
        return attention_modes.get_mode(self.decoder)

    @attention.setter
    def attention(self, mode: str) -> None:
        before = self.attention
        self._refuse_prefixes(mode, self.prefix_cache)
        attention_modes.set_mode(self.decoder, mode)
        try:
            self._refuse_other(mode, attention_modes.measured_mode(self.decoder))
        except AttentionError:
            attention_modes.set_mode(self.decoder, before)  # else another model could build on it unmeasured
            raise
        logger.info("attention is %s, as measured", mode)

    @property
    def prefix_cache(self) -> bool:
        """Whether beginnings that texts share are read once and kept; False forgets them.

        Raises:
            InvalidValueError: Not a bool, or True under bidirectional attention.
        """
        return self._prefixes is not None

    @prefix_cache.setter
    def prefix_cache(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise InvalidValueError("prefix_cache", "True or False", value)
        self._refuse_prefixes(self.attention, value)
        self._prefixes = PrefixCache() if value else None

    @staticmethod
    def _refuse_prefixes(mode: str, asked: bool) -> None:
        if asked and mode != "causal":
            raise InvalidValueError(
                "prefix_cache", "causal attention, under which a beginning is the same whatever follows", mode,
                "Leave prefix_cache out, or build with attention='causal'.",
            )  # fmt: skip

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, which drops what is kept of prefixes, since weights may change; or back."""
        if mode and self._prefixes is not None:
            self._prefixes.clear()
        return super().train(mode)

    def measure_attention(self) -> None:
        """Check again, by measurement, that attention is what it says, such as after a change of the weights.

        Raises:
            AttentionError: It is not.
        """
        self._refuse_other(self.attention, attention_modes.probe(self.decoder))

    def _refuse_other(self, mode: str, measured: str) -> None:
        if measured != mode:
            raise AttentionError(
                f"Asked for {mode} attention, measured {measured} with "
                f"{self.decoder.config._attn_implementation!r}. "
                "Load the backbone with attn_implementation='sdpa' or 'eager'."
            )

    @property
    def template(self) -> dict[str, Any]:
        """The template as plain data, the form in which it is saved."""
        return self._template.model_dump(mode="json")

    def resolved(self) -> dict[str, Any]:
        """All that its states depend on besides weights, as plain data.

        That is its settings with the template, and the content of the transformers' configurations and the tokenizers.
        """
        parts, own = dict(self.named_children()), vars(self).values()
        return {
            # Without what changes no state but by rounding, and nothing in training.
            **{name: getattr(self, name) for name in self.config_keys if name != "prefix_cache"},
            "template": resolved(self._template),
            "configurations": {n: configuration_content(p) for n, p in parts.items() if isinstance(p, PreTrainedModel)},
            "tokenizers": [tokenizer_content(one) for one in own if isinstance(one, PreTrainedTokenizerBase)],
        }

    @property
    def examples(self) -> dict[str, list[list[str]]]:
        """Examples in the prompt, in the form in which they are saved: [query, response] pairs by bare instruction.

        They are set from any sequences of pairs; ``{}`` removes them.

        Raises:
            InvalidValueError: Something else, or a template that has no place for examples.
        """
        return self.template["examples"]

    @examples.setter
    def examples(self, examples: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._set_template(self._template.with_(examples=examples))

    @property
    def suffix(self) -> str:
        """The suffix of a text: ``eos``, the opening of a chat's ``answer``, or a request for ``keywords``.

        Raises:
            InvalidValueError: Another suffix, a template without a place for one, or a tokenizer whose chat template
                opens no answer.
        """
        return self._template.suffix

    @suffix.setter
    def suffix(self, suffix: str) -> None:
        self._set_template(self._template.with_(suffix=suffix))

    def _set_template(self, template: Template) -> None:
        if template.suffix == "answer":
            answer_opening(self.tokenizer)  # refuses a tokenizer that opens none
        self._template = template

    @property
    def closes(self) -> bool:
        """True if the last pooled token is of the suffix; otherwise it is one of the text's own."""
        return self._template.closes(self.tokenizer)

    @property
    def max_length(self) -> int:
        """Longest input in tokens.

        Raises:
            InvalidValueError: When set, not a positive whole number.
        """
        return self._max_length

    @max_length.setter
    def max_length(self, value: int) -> None:
        self._max_length = whole("max_length", value, of="tokens")

    @property
    def max_seq_length(self) -> int:
        """``max_length`` under its name in sentence-transformers."""
        return self.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.max_length = value

    def get_embedding_dimension(self) -> int:
        """Width of the token states."""
        return self.decoder.config.hidden_size

    def encode_texts(self, texts: Sequence[str], instruction: str | None = None) -> list[Encoded]:
        """Token ids and pooling masks of texts, unpadded, as the model will read them.

        Args:
            texts: Strings.
            instruction: The bare task instruction, or None.

        Raises:
            InvalidValueError: A text or an instruction that is not a string, or one that can't be read.
        """
        if not isinstance(instruction, str | None):
            raise InvalidValueError("instruction (prompt)", "a string, or None for none", instruction)
        check_text("instruction (prompt)", instruction or "")
        for text in texts:
            check_text("texts", text)  # without its position: sentence-transformers hands over batches, by length
        return self._template.encode(self.tokenizer, texts, instruction, self.max_length, self.contextual_tokens)

    def preprocess(
        self, inputs: Sequence[str | dict[str, str] | Sequence[int]], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """Tokenize texts into ``input_ids``, ``attention_mask`` and ``pooling_mask``, int64 (batch, tokens).

        With a prefix cache there is ``prefix_mask`` too, 1 at the tokens in front of what is a text's own.

        Args:
            inputs: Strings; or {instruction, text} where each row has its own instruction; or lists of token ids, such
                as chunks of running text, which are not laid out by the template.
            prompt: The bare task instruction, without any "Instruct:" around it: the template adds that.
            **kwargs: Ignored (sentence-transformers passes the task).

        Raises:
            InvalidValueError: As :meth:`encode_texts`; or a row without token ids, or with ids that the decoder does
                not have.
        """
        if inputs and all(isinstance(row, list) and all(type(id_) is int for id_ in row) for row in inputs):
            rows = [self._of_ids(row) for row in inputs]
        elif inputs and all(isinstance(row, dict) and row.keys() == {"instruction", "text"} for row in inputs):
            rows = [self.encode_texts([row["text"]], row["instruction"])[0] for row in inputs]
        else:
            rows = self.encode_texts(inputs, prompt)
        features, prefix_mask = batch_of(rows, self.tokenizer)
        return features | ({"prefix_mask": prefix_mask} if self.prefix_cache else {})

    def _of_ids(self, row: list[int]) -> Encoded:
        known = self.decoder.config.vocab_size
        if not row or min(row) < 0 or max(row) >= known:
            raise InvalidValueError("inputs", f"rows of token ids, one or more from 0 to {known - 1}", row)
        return Encoded(row, [1] * len(row))

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``token_embeddings``, (batch, tokens, dim) in the decoder's dtype, to the features.

        Args:
            features: Output of :meth:`preprocess`. Optional: ``inputs_embeds`` (batch, tokens, dim), read in place of
                ``input_ids``; ``position_ids``, int64 (batch, tokens), where positions otherwise count from the first
                real token; ``attention``, a mode for this pass alone, also when gradient checkpointing computes it
                again.
            **kwargs: Ignored.

        Raises:
            UnknownNameError: No such attention mode.
            AttentionError: Another attention than the decoder's own, with flash attention.
        """
        attention = features.get("attention", self.attention)
        states, mask = partial(last_states, self.decoder, attention=attention), features["attention_mask"]
        shares = self._shares(features, attention)
        inputs = self._inputs(features)
        if shares:
            marked = features["prefix_mask"] * mask
            made = behind_prefixes(self.decoder, self._prefixes, inputs, mask, features["input_ids"], marked)
        else:
            # Groups leave columns of padding out, whose states are asked for where they have positions of their own.
            made = states(inputs, mask) if "position_ids" in inputs else in_groups(states, inputs, mask)
        features["token_embeddings"] = made
        return features

    def _shares(self, features: dict[str, Any], attention: str) -> bool:
        """True if this pass may take beginnings from the cache."""
        return (
            self.prefix_cache
            and attention == self.attention == "causal"
            and not (self.training or self.decoder.training or torch.is_grad_enabled())
            and "prefix_mask" in features
            and not {"inputs_embeds", "position_ids"} & features.keys()
            and not watched(self.decoder)
        )

    def _inputs(self, features: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The inputs of the language model, (batch, tokens, ..), by the name of its argument."""
        names = ("inputs_embeds" if "inputs_embeds" in features else "input_ids", "position_ids")
        return {name: features[name] for name in names if name in features}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write weights (safetensors), configuration and tokenizer, with their checksums.

        Args:
            output_path: The folder.
            *args, **kwargs: Ignored.

        Raises:
            OutputError: The folder can't be written.
        """
        with writing(Path(output_path)):
            # Under the names of its modules; a checkpoint that was read by other names would be written by those again.
            self.decoder.save_pretrained(output_path, save_original_format=False)
            self.save_tokenizer(output_path)
            self.save_config(output_path)
            write_checksums(Path(output_path))

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        model_kwargs: dict[str, Any] | None = None,
        processor_kwargs: dict[str, Any] | None = None,
        config_kwargs: dict[str, Any] | None = None,
        backend: str = "torch",
        **kwargs: Any,
    ) -> Decoder:
        """Load from a folder or the hub, in the dtype that was saved, on the CPU.

        sentence-transformers then moves the whole chain to the device that was asked for.

        Args:
            model_name_or_path: The folder of a model, or its name on the hub.
            subfolder: The module's folder in it.
            model_kwargs: Another ``dtype``, or an ``attn_implementation``: by default the one that runs on any device.
            processor_kwargs: Another ``padding_side``.
            config_kwargs, backend: Nothing else than sentence-transformers' defaults.
            **kwargs: Options for fetching files from the hub, such as ``revision``; others are ignored.

        Raises:
            DamagedFileError: A file does not match its checksum or can't be read.
            UnknownNameError: An option that is not honoured; see :func:`~.saving.loading_options`.
            InvalidValueError: Another dtype, attention implementation, padding side or backend that does not exist.
        """
        options = loading_options(model_kwargs, processor_kwargs, config_kwargs, backend)
        hub = hub_options(kwargs)
        folder = Path(cls.load_dir_path(model_name_or_path, subfolder=subfolder, **hub))
        verify_checksums(
            folder,
            "Save the model again, or copy it again from its source; after an edit on purpose delete checksums.json.",
        )
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub)
        decoder = backbones.load_decoder(
            folder,
            dtype=options.get("dtype", backbones.load_config(folder).dtype or "auto"),
            attn_implementation=options.get("attn_implementation", "auto"),
            device="cpu",
        )
        tokenizer = backbones.load_tokenizer(folder)
        tokenizer.padding_side = options.get("padding_side", tokenizer.padding_side)
        return cls._assembled(folder, decoder, tokenizer, config)

    @classmethod
    def _assembled(
        cls, folder: Path, decoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: dict[str, Any]
    ) -> Decoder:
        """The module, from what was loaded and what else the folder holds."""
        return cls(decoder, tokenizer, **config)
