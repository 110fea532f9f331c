"""Components of a model, how it was made, where its time goes, and where it plays."""
