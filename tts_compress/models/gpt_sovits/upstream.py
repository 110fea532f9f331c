"""GPT-SoVITS' own code, in the user's clone of its repository, and differences of its versions."""

import io
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from tts_compress.errors import ModelError
from tts_compress.families import Upstream
from tts_compress.models.checkout import find_checkout

GPT_SOVITS = Upstream(
    family="gpt-sovits",
    name="GPT-SoVITS",
    repository="https://github.com/RVC-Boss/GPT-SoVITS",
    commit="48b1a0169a28582a8984402f82cf438d3bfa6aca",
    variable="TTS_COMPRESS_GPT_SOVITS",
    extra="gpt-sovits",
    markers=("GPT_SoVITS/TTS_infer_pack/TTS.py", "GPT_SoVITS/process_ckpt.py"),
    paths=("GPT_SoVITS", "."),
    modules=(
        *("AR", "BigVGAN", "GPT_SoVITS", "TTS_infer_pack", "config", "eres2net", "f5_tts"),
        *("feature_extractor", "module", "process_ckpt", "sv", "text", "tools", "utils"),
        # In folders that it appends to `sys.path` itself.
        *("ERes2NetV2", "datasets1", "fusion", "kaldi", "models", "pooling_layers"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Facts of one of upstream's systems; files are named below its folder of pretrained ones."""

    sovits: str  # the published synthesizer
    t2s: str = "s1v3.ckpt"  # the published T2S model
    digest: str  # MD5 of the first 8192 bytes of the published synthesizer
    header: bytes | None = b"PK"  # a trained synthesizer's; None where upstream reads no such file
    symbols: int = 732  # phonemes and punctuation that texts are made of
    speaker: str | None = None  # speaker verification model, where the synthesizer uses one
    vocoder: str | None = None  # its folder or file, where the synthesizer outputs spectrograms
    vocoder_configs: Mapping[str, int] | None = None  # in `TTS.vocoder_configs`; `sr` is in Hz


_SYMBOLS = "enc_p.text_embedding.weight"
_DECODER = "dec.conv_pre.weight"
_SPEAKER = "sv/pretrained_eres2netv2w24s4ep4.ckpt"

VERSIONS: dict[str, Version] = {
    "v1": Version(
        t2s="s1bert25hz-2kh-longer-epoch=68e-step=50232.ckpt",
        sovits="s2G488k.pth",
        digest="dc3c97e17592963677a4a1681f30c653",
        symbols=322,
    ),
    "v2": Version(
        t2s="gsv-v2final-pretrained/s1bert25hz-5kh-longer-epoch=12-step=369668.ckpt",
        sovits="gsv-v2final-pretrained/s2G2333k.pth",
        digest="6642b37f3dbb1f76882b69937c95a5f3",
    ),
    "v2Pro": Version(
        sovits="v2Pro/s2Gv2Pro.pth",
        digest="c7e9fce2223f3db685cdfa1e6368728a",
        header=b"05",
        speaker=_SPEAKER,
    ),
    "v2ProPlus": Version(
        sovits="v2Pro/s2Gv2ProPlus.pth",
        digest="66b313e39455b57ab1b0bc0b239c9d0a",
        header=b"06",
        speaker=_SPEAKER,
    ),
    "v3": Version(
        sovits="s2Gv3.pth",
        digest="43797be674a37c1c83ee81081941ed0f",
        header=b"02",
        vocoder="models--nvidia--bigvgan_v2_24khz_100band_256x",
        vocoder_configs={"sr": 24_000, "T_ref": 468, "T_chunk": 934, "upsample_rate": 256},
    ),
    "v4": Version(
        sovits="gsv-v4-pretrained/s2Gv4.pth",
        digest="4f26b9476d0c5033e04162c486074374",
        header=None,
        vocoder="gsv-v4-pretrained/vocoder.pth",
        vocoder_configs={"sr": 48_000, "T_ref": 500, "T_chunk": 1000, "upsample_rate": 480},
    ),
}


def sovits_version(
    where: Path, marked: str | None, stated: object, shapes: Mapping[str, tuple[int, ...]]
) -> str:
    """Return the version that a synthesizer's tensors are of, by their names and shapes.

    Where several have such tensors, the version that its first bytes mark it as counts, then the
    one that its settings state. A mark of another version is refused.
    """
    symbols, channels = shapes.get(_SYMBOLS, ())[:1], shapes.get(_DECODER, ())[:1]
    if any(name.startswith("cfm.") for name in shapes):
        possible = ["v3", "v4"]  # the same networks at other rates; v3 if nothing decides
    elif not symbols or not channels:
        raise ModelError(
            f"'{where}' holds no weights of a SoVITS model, such as '{_SYMBOLS}' and "
            f"'{_DECODER}'; give the file that training saved to SoVITS_weights"
        )
    elif "sv_emb.weight" in shapes:  # v2Pro's decoder begins with 512 channels, v2ProPlus' with 768
        possible = ["v2ProPlus", "v2Pro"] if channels[0] >= 768 else ["v2Pro", "v2ProPlus"]
    else:
        possible = [name for name in ("v1", "v2") if VERSIONS[name].symbols == symbols[0]]
    if not possible:
        raise ModelError(
            f"'{where}' is a SoVITS model of {symbols[0]} symbols; those of v1 have "
            f"{VERSIONS['v1'].symbols} and all newer ones {VERSIONS['v2'].symbols}"
        )
    version = next((str(name) for name in (marked, stated) if name in possible), possible[0])
    # Upstream itself corrects v1 and v2 by the number of symbols.
    if marked not in {None, version} and {marked, version} != {"v1", "v2"}:
        raise ModelError(
            f"'{where}' is marked as {marked}, and its tensors are of {version}; fetch it again"
        )
    return version


class Official:
    """Upstream's modules, imported from the clone; an error names what to clone or to install."""

    def __init__(self) -> None:
        self.checkout = find_checkout(GPT_SOVITS)
        from tts_compress.models.shims.stand_ins import offer_torchaudio

        offer_torchaudio()
        with self.running():
            self.inference = self.checkout.load("TTS_infer_pack.TTS")
            self.t2s = self.checkout.load("AR.models.t2s_model")
            self.speaker = self.checkout.load("sv")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run upstream's code from its root, without the progress that it prints."""
        silent = redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO())
        hash_seed = os.environ.get("PYTHONHASHSEED")
        try:
            with self.checkout.running(), warnings.catch_warnings(), silent[0], silent[1]:
                warnings.simplefilter("ignore")
                yield
        finally:  # upstream writes its seed there; Python does not start with some
            os.environ.pop("PYTHONHASHSEED", None)
            if hash_seed is not None:
                os.environ["PYTHONHASHSEED"] = hash_seed
