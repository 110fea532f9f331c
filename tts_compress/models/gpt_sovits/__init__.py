"""GPT-SoVITS: a language model of semantic tokens and a synthesizer, run from the user's clone."""
