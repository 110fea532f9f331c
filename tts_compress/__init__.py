"""Make text-to-speech models small and fast, and prove what that cost."""
