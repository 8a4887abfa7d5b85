"""Texts have the tokens that the reference tokenizer gives them, or one clear error."""

import unicodedata

import numpy as np
import pytest

from triton_sam.concepts.tokenizer import LONGEST_TEXT, Tokenizer
from triton_sam.errors import PromptError, RepositoryError

pytestmark = [pytest.mark.export, pytest.mark.usefixtures("packages")]

LENGTH = 32
EMOJI = "🐈🐕🚦🚌👩‍👩‍👧‍👦🏳️‍🌈"
ODD = ["", " ", "\t\n", "a\x00b", "\x07\x1b[31m", "A  B", "don't", "x" * 40, "<|endoftext|>", EMOJI]
CONTROLS = [
    *map(chr, (*range(32), *range(127, 160))),  # C0 and C1
    *map(chr, (0xAD, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2065), *range(0x2066, 0x206A))),
    *map(chr, (0xFEFF, 0xFFFD, 0xFFFF, 0xE000, 0xE0020, 0x10FFFF)),  # marks, no character, private, tags
]
SCRIPTS = {
    "LATIN": "abcdefghijklmnopqrstuvwxyz ABC 0123 .,!?'- àâçéèêëîïôùÿœæ ßäöü ąćęłńóśźż čďěňřšťůž",
    "CYRILLIC": "абвгдежзийклмнопрстуф ЩЬЮЯ",
    "GREEK": "αβγδεζηθικλμνξοπρστυφχψω",
    "HEBREW": "אבגדהוזחטיכלמנסעפצקרשת",
    "ARABIC": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "DEVANAGARI": "अआइईउऊऋएऐओऔकखगघङचछजझ",
    "BENGALI": "অআইঈউঊঋএঐওঔকখগঘঙ",
    "TAMIL": "தமிழ்மொழி",
    "TELUGU": "తెలుగుభాష",
    "SINHALA": "සිංහලභාෂාව",
    "THAI": "กขฃคฅฆงจฉชซฌญฎฏภาษาไทย",
    "LAO": "ພາສາລາວກຂຄງຈ",
    "KHMER": "ភាសាខ្មែរកខគឃង",
    "MYANMAR": "မြန်မာဘာသာကခဂဃင",
    "HANGUL": "한국어단어고양이강아지",
    "HIRAGANA": "ひらがなカタカナの日本語",
    "CJK": "汉字猫狗红绿灯校车",
    "GEORGIAN": "ქართულიენა",
    "ARMENIAN": "հայերենլեզու",
    "ETHIOPIC": "አማርኛቋንቋ",
}
"""Letters of twenty scripts, by the first word of the Unicode names of most of them."""


@pytest.fixture(scope="module")
def packages():
    pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def place(packages, tmp_path_factory):
    from triton_sam.export.sam3.tokenizer import tokenizer_text

    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokenizer_text(None, LENGTH), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def ours(place):
    return Tokenizer(place, LENGTH)


@pytest.fixture(scope="module")
def reference(packages):
    from transformers.models.sam3.image_processing_sam3 import Sam3ImageProcessor
    from transformers.models.sam3.processing_sam3 import Sam3Processor

    from triton_sam.export.sam3.tokenizer import open_tokenizer

    return Sam3Processor(Sam3ImageProcessor(), open_tokenizer(None))


def same(ours: Tokenizer, reference, text: str) -> bool:
    """Compare one text; return whether it has tokens at all."""
    expected = reference(text=text, return_tensors="np")
    if expected["input_ids"].shape[1] > LENGTH:
        with pytest.raises(PromptError, match="tokens with the start and the end"):
            ours.tokens([text])
        return False
    ids, mask = ours.tokens([text])
    np.testing.assert_array_equal(ids, expected["input_ids"], err_msg=repr(text))
    np.testing.assert_array_equal(mask, expected["attention_mask"], err_msg=repr(text))
    assert ids.dtype == mask.dtype == np.int64
    return True


def test_a_thousand_texts_in_twenty_scripts(ours, reference):
    rng = np.random.default_rng(0)
    texts = []
    for script, letters in SCRIPTS.items():
        assert sum(unicodedata.name(letter).startswith(script) for letter in letters) > len(letters) / 3
        for _ in range(50):
            words = ["".join(rng.choice(list(letters), rng.integers(1, 7))) for _ in range(rng.integers(1, 4))]
            texts.append(" ".join(words))
    assert (len(texts), len(SCRIPTS)) == (1000, 20)
    assert sum(same(ours, reference, text) for text in texts) > 800


def test_known_tokens_of_clip_and_texts_of_a_batch_that_do_not_change_each_other(ours):
    """The numbers are those of CLIP's published tokenizer for this sentence."""
    ids, mask = ours.tokens(["a photo of a cat"])
    assert ids[0, :7].tolist() == [49406, 320, 1125, 539, 320, 2368, 49407]
    assert mask[0].tolist() == [1] * 7 + [0] * 25
    together, _ = ours.tokens(["dog", "a yellow school bus", "dog"])
    assert (together[0] == together[2]).all()
    assert (together[1] == ours.tokens(["a yellow school bus"])[0]).all()


def test_odd_texts_and_control_characters(ours, reference):
    for text in ODD:
        same(ours, reference, text)
    for each in CONTROLS:
        for text in (each, f"red{each}dog", f"{each}red dog{each}"):
            assert same(ours, reference, text)


def test_what_has_no_tokens(ours):
    with pytest.raises(PromptError, match="a text has 10000 characters: describe the concept in a few words"):
        ours.tokens(["x" * 10_000])
    with pytest.raises(PromptError, match="tokens with the start and the end, and the model takes 32"):
        ours.tokens(["dog " * (LONGEST_TEXT // 4)])
    with pytest.raises(PromptError, match="invalid Unicode"):
        ours.tokens(["\ud800"])


def test_a_file_that_is_missing_or_damaged(place, tmp_path):
    with pytest.raises(RepositoryError, match="is not there: export the model with --concepts again"):
        Tokenizer(tmp_path / "tokenizer.json", LENGTH)
    damaged = tmp_path / "tokenizer.json"
    damaged.write_bytes(place.read_bytes()[:1000])
    with pytest.raises(RepositoryError, match="is damaged"):
        Tokenizer(damaged, LENGTH)


def test_the_folder_of_a_checkpoint_comes_first(tmp_path):
    from triton_sam.errors import ExportError
    from triton_sam.export.sam3.tokenizer import open_tokenizer, tokenizer_text

    checkpoint = tmp_path / "model.safetensors"
    checkpoint.touch()
    (tmp_path / "config.json").touch()
    assert tokenizer_text(checkpoint, LENGTH) == tokenizer_text(None, LENGTH)
    open_tokenizer(None).save_pretrained(tmp_path)
    assert open_tokenizer(checkpoint)("a cat")["input_ids"] == [49406, 320, 2368, 49407]
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ExportError, match=r"the tokenizer in .* is damaged"):
        open_tokenizer(checkpoint)
