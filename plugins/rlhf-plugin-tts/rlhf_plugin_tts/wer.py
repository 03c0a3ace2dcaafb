"""The reward for being understood: the word error rate of a recogniser."""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf_core.models import ModelError
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip, ClipError
from rlhf_plugin_tts.clip_reward import ClipReward, spoken_text
from rlhf_plugin_tts.config import WerConfig
from rlhf_plugin_tts.pocket_voice.numbers import spell_numbers

RATE = 16000
_CJK = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003134f]"
UNSPACED = re.compile(f"({_CJK})")
"""Characters of Chinese and Japanese, whose words have no blanks between them."""
PUT = re.compile(f"(?<={_CJK}) | (?={_CJK})")
"""Blanks beside them."""


class Wer(ClipReward):
    """``-min(cap, word error rate)``; parts ``wer``, ``cer`` (characters) and ``words``."""

    def __init__(self, config: WerConfig) -> None:
        super().__init__(config.max_seconds, scores_silence=True)
        self.cap = config.cap
        self.recogniser: PocketSphinx | Whisper = (
            PocketSphinx() if config.recogniser == "pocketsphinx" else Whisper(str(config.whisper))
        )

    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        reference = normalised(spoken_text(sample))
        if not reference:
            raise ClipError("the prompt has no word to be spoken")
        if isinstance(self.recogniser, PocketSphinx):
            reference = in_latin_letters(reference)
        wer, cer = error_rates(reference, normalised(self.recogniser.transcribe(clip)))
        return -min(self.cap, wer), {"wer": wer, "cer": cer, "words": len(reference.split())}


def error_rates(reference: str, hypothesis: str) -> tuple[float, float]:
    """(word, character) error rate; 1.0 of an empty hypothesis. Blanks beside Chinese and Japanese do not count."""
    jiwer: Any = importlib.import_module("jiwer")
    texts = (reference, hypothesis)
    return float(jiwer.wer(*texts)), float(jiwer.cer(*(PUT.sub("", text) for text in texts)))


def normalised(text: str) -> str:
    """Lower case words, numbers spoken, without punctuation; a Chinese or Japanese character is a word
    (arXiv:2212.04356)."""
    plain = spell_numbers(unicodedata.normalize("NFKC", text)).replace("’", "'").lower()
    plain = UNSPACED.sub(r" \1 ", plain)
    return " ".join(re.findall(r"[^\W_]+(?:'[^\W_]+)*", plain))


def in_latin_letters(text: str) -> str:
    """The words as PocketSphinx would write them: without accents."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    if foreign := sorted({c for c in plain if c.isalpha() and not c.isascii()}):
        raise ClipError(
            f"PocketSphinx writes English in Latin letters only, not {''.join(foreign[:8])!r}: recogniser=whisper"
        )
    return plain


class PocketSphinx:
    """CMU PocketSphinx with the American English model that its wheel holds. One clip does not adapt the next."""

    def __init__(self) -> None:
        pocketsphinx: Any = importlib.import_module("pocketsphinx")
        self._decoder = pocketsphinx.Decoder(samprate=float(RATE), loglevel="FATAL")

    def transcribe(self, clip: Clip) -> str:
        samples = np.clip(clip.at(RATE).samples, -1, 1)
        self._decoder.reinit_feat()  # else the level of noise and the cepstral mean are those of the clip before
        self._decoder.start_utt()
        self._decoder.process_raw((samples * 32767).astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return "" if hypothesis is None else re.sub(r"\(\d+\)|<[^>]*>|\[[^]]*\]", "", hypothesis.hypstr)


class Whisper:
    """Any Whisper checkpoint in Hugging Face form; greedy, on the CPU."""

    def __init__(self, path: str) -> None:
        from rlhf_core.models import check_finite

        transformers: Any = importlib.import_module("transformers")
        try:
            self._model = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(path, use_safetensors=True).eval()
            self._extractor = transformers.AutoFeatureExtractor.from_pretrained(path)
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"'{path}' is not a Whisper checkpoint that transformers loads",
                why=str(error).splitlines()[0],
                fix="reward.whisper=FOLDER, or a hub id such as openai/whisper-base.en",
            ) from error
        check_finite(self._model.state_dict(), path)

    def transcribe(self, clip: Clip) -> str:
        """Greedy transcription of each 30 s, joined."""
        import torch

        samples = clip.at(RATE).samples
        texts = []
        for at in range(0, len(samples), 30 * RATE):
            inputs = self._extractor(samples[at : at + 30 * RATE], sampling_rate=RATE, return_tensors="pt")
            with torch.inference_mode():
                ids = self._model.generate(inputs["input_features"], do_sample=False, num_beams=1, max_new_tokens=224)
            texts.append(self._tokenizer.decode(ids[0], skip_special_tokens=True))
        return " ".join(texts)
