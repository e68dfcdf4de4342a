"""Languages: codes and English names, and which one a text's script speaks for"""

from __future__ import annotations

import re
from typing import Any

from albatross_plugin.errors import RequestError, shown

# Codes as browsers and translators use them (BCP 47), with the names by which models know the languages.
NAMES = {
    "af": "Afrikaans", "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "cy": "Welsh", "da": "Danish",
    "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian",
    "fi": "Finnish", "fil": "Filipino", "fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi",
    "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese",
    "ka": "Georgian", "kk": "Kazakh", "km": "Khmer", "kn": "Kannada", "ko": "Korean", "la": "Latin", "lo": "Lao", "lt": "Lithuanian",
    "lv": "Latvian", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi", "ms": "Malay", "my": "Burmese",
    "ne": "Nepali", "nl": "Dutch", "no": "Norwegian", "pa": "Punjabi", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian",
    "ru": "Russian", "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish",
    "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek",
    "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese", "zh-hant": "Traditional Chinese",
}  # fmt: skip
_OTHER = {"zh-tw": "zh-hant", "zh-hk": "zh-hant", "zh-mo": "zh-hant", "iw": "he", "in": "id", "tl": "fil", "nb": "no", "nn": "no"}
_BY_NAME = {name.lower(): code for code, name in NAMES.items()} | {"simplified chinese": "zh"}
# A tag may be longer than the code that is known of it, and is told back with each text.
_TAG = re.compile(r"[A-Za-z0-9 _-]{1,64}")
# So many characters of a text speak for all of it.
_SAMPLE = 4096
_KANA = "\u3041-\u30ff\uff66-\uff9d"
# Scripts that tell the language, and letters of them that tell another one which shares the script.
_SCRIPTS = [
    ("zh", re.compile(f"[{_KANA}\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"), "ja", re.compile(f"[{_KANA}]")),
    ("ko", re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]"), "", None),
    ("ru", re.compile("[\u0400-\u04ff]"), "uk", re.compile("[іїєґІЇЄҐ]")),
    ("ar", re.compile("[\u0600-\u06ff]"), "fa", re.compile("[پچژگی]")),
    ("el", re.compile("[\u0370-\u03ff]"), "", None),
    ("he", re.compile("[\u0590-\u05ff]"), "", None),
    ("hi", re.compile("[\u0900-\u097f]"), "", None),
    ("bn", re.compile("[\u0980-\u09ff]"), "", None),
    ("ta", re.compile("[\u0b80-\u0bff]"), "", None),
    ("th", re.compile("[\u0e00-\u0e7f]"), "", None),
    ("ka", re.compile("[\u10a0-\u10ff]"), "", None),
    ("hy", re.compile("[\u0530-\u058f]"), "", None),
]
# Of a text's letters, so many must be in a script before it decides, and so many of those be of the other language: one foreign word
# decides nothing.
_SHARE, _OTHER_SHARE = 0.2, 0.04


def language(value: Any, param: str) -> str:
    """The code of a language that is given by code or English name. Raises RequestError 400."""
    if isinstance(value, str) and _TAG.fullmatch(value.strip()):
        wanted = value.strip().replace("_", "-").lower()
        if wanted in _BY_NAME:
            return _BY_NAME[wanted]
        wanted = _OTHER.get(wanted, wanted)
        if wanted.startswith("zh-hant"):
            return "zh-hant"
        for code in (wanted, wanted.partition("-")[0]):
            if code in NAMES:
                return code
    message = f"{param} must be a language such as en, zh-CN or Japanese, got {shown(value)}"
    raise RequestError(message, param=param, code="unknown_language")


def detected(text: str) -> str:
    """The language that the script of a text's beginning speaks for; ``en`` where none does. Latin letters do not tell languages apart."""
    text = text.lstrip()[:_SAMPLE]
    letters = sum(map(str.isalpha, text))
    for code, script, other, its_letters in _SCRIPTS:
        inside = len(script.findall(text))
        if inside and inside >= _SHARE * letters:
            return other if its_letters is not None and len(its_letters.findall(text)) >= _OTHER_SHARE * inside else code
    return "en"
