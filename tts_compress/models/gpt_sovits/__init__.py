"""GPT-SoVITS: a language model of semantic tokens and a synthesizer, run from the user's clone."""

from tts_compress.families import Family, Upstream

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

FAMILY = Family(
    name=GPT_SOVITS.family,
    opener="tts_compress.models.gpt_sovits.model:GptSovitsModel.open",
    location="CONFIG.yaml or T2S.ckpt,SOVITS.pth",
    extra=GPT_SOVITS.extra,
    upstream=GPT_SOVITS,
)
